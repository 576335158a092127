"""Agents in environments: episodes of many turns, with one reward per turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from roll.core.configs.arguments import GeneratingArguments
from roll.core.configs.base import COUNT
from roll.core.configs.estimators import TurnScope
from roll.core.configs.fields import Bounds, option, required
from roll.core.configs.ppo import MAIN_SET, PPOConfig
from roll.core.configs.program import ProgramConfig
from roll.core.configs.sizes import Lengths
from roll.core.configs.tools import ToolWrapperConfig

EnvFailurePolicy = Literal["retry", "drop_sample", "drop_group"]
EnvExecution = Literal["inline", "thread", "process"]
RewardGrouping = Literal["batch", "tags", "traj_group_id", "state"]

LOOPBACK = "127.0.0.1"
EQUAL_REWARDS = "roll.core.groups.filters.equal_rewards"
_MANAGERS = "roll.pipeline.agentic.env_manager"
TRAJ_ENV_MANAGER = f"{_MANAGERS}.traj_env_manager.TrajEnvManager"
ENV_MANAGERS = (
    TRAJ_ENV_MANAGER,
    f"{_MANAGERS}.step_env_manager.StepEnvManager",
    f"{_MANAGERS}.step_concat_env_manager.StepConcatEnvManager",
    f"{_MANAGERS}.agent_native_env_manager.AgentNativeStepEnvManager",
)


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """A kind of environment, named by its tag under `custom_envs`."""

    env_type: str = required("Environment: a built-in name or the dotted path of your own class; or program.")
    env_config: dict[str, Any] = option({}, "Handed to the environment; unknown keys are refused.")
    python: str | None = option(
        None,
        "Interpreter that the environment is in, by the name that roll env add gave it or by its path; null means the one "
        "named like the environment's package, where there is one, else the run's. Another's steps run in processes.",
        path="interpreter",
    )
    env_manager_cls: str = option(
        TRAJ_ENV_MANAGER,
        "Dotted path of the class that plays an episode. TrajEnvManager: one sample an episode.\n"
        f"{ENV_MANAGERS[1]}: one sample a turn.\n"
        f"{ENV_MANAGERS[2]}: the same, {{history}} is what was seen.\n"
        f"{ENV_MANAGERS[3]}: one sample a turn, of messages that the environment gives.",
    )
    max_steps: int = option(10, "Turns of an episode, of a program its calls; a longer one is truncated.", bounds=COUNT)
    success_at: float | None = option(
        None, "Sum of an episode's rewards from which on it is a success; null means what the environment says of its last step."
    )
    max_tokens_per_step: int | None = option(
        None, "Longest answer of one turn, in tokens; null means the top level's.", bounds=COUNT
    )
    agent_system_template: str | None = option(
        None,
        "System prompt; {instructions} are the environment's rules; null means these alone, unless agent_template has them; "
        "empty means none.",
    )
    agent_template: str = option(
        "{observation}",
        "User message of a turn: {observation}, {turn_idx} (from 1), {step_count} (turns before), {actions_left}, "
        "{max_response_length}, {suffix} (what the environment adds), {instructions}; StepEnvManager and StepConcatEnvManager: "
        "also {history}, {history_length}.",
    )
    history_length: int = option(2, "Turns before this one that {history} shows; 0 means none.", bounds=Bounds(ge=0))
    execution: EnvExecution = option(
        "inline",
        "Where steps run.\n"
        "inline: in the event loop, for fast or asynchronous ones.\n"
        "thread: in a thread.\n"
        "process: in a process of its own, which can be killed.",
    )
    memory_mb: int = option(
        8192,
        "Most memory that a process of its environments takes (data, on Linux); the step that needs more has failed, and the "
        "process is ended. 0 means no limit. Environments inline and in threads are in the run's processes, which have none.",
        bounds=Bounds(ge=0),
    )
    max_env_step_concurrent: int = option(
        0, "Most steps and resets, or programs, of this tag side by side in one worker; 0 means no limit.", bounds=Bounds(ge=0)
    )
    step_timeout_s: float = option(
        60.0, "A step that takes longer has failed; inline: only that of an environment with coroutines.", bounds=Bounds(gt=0)
    )
    reset_timeout_s: float = option(60.0, "A reset that takes longer has failed; as step_timeout_s.", bounds=Bounds(gt=0))
    on_env_failure: EnvFailurePolicy = option(
        "retry",
        "What a failed environment costs besides its episode.\n"
        "retry: the episode is played again, once; then the group is dropped.\n"
        "drop_sample: the group goes on without it.\n"
        "drop_group: the group is dropped.",
    )
    durable_turns: bool = option(
        True,
        "An episode whose environment's process, coordinator or driver is killed goes on at its last turn: its environment gets "
        "the same actions again and must do the same, or has a method resume; a program must ask the same. false: it restarts.",
    )
    tool_wrapper: ToolWrapperConfig | None = option(None, "Tools between the policy and the environment; null means none.")
    program: ProgramConfig | None = option(None, "With env_type: program, the agent; it takes the place of env_config.")

    @property
    def keeps_conversation(self) -> bool:
        """True if its environments show messages and have their own tools, by the name of their manager."""
        return "AgentNative" in self.env_manager_cls.rpartition(".")[2]

    @property
    def by_turn(self) -> bool:
        """True if each turn of its episodes becomes a sample, by the name of its manager."""
        return "Step" in self.env_manager_cls.rpartition(".")[2]


@dataclass(frozen=True, kw_only=True)
class EnvManagerConfig:
    """The episodes to play, and the number of workers."""

    tags: list[str] = option([], "Kinds of environments, keys of custom_envs; empty means all of them.")
    num_env_groups: int = option(128, "Groups of environments played at the same time, over all tags.", bounds=COUNT)
    num_groups_partition: list[int] = option(
        [], "Of num_env_groups, how many are of each tag; empty means equal parts.", bounds=Bounds(ge=0)
    )
    group_size: int = option(1, "Episodes of a group: the same environment and seed.", bounds=COUNT)
    group_size_redundancy: int = option(
        0, "More episodes than needed in each group; the first group_size to finish count.", bounds=Bounds(ge=0)
    )
    max_env_num_per_worker: int = option(
        16, "Environments that one worker process plays side by side; there are no more workers than CPU cores.", bounds=COUNT
    )
    group_filter_cls: str | None = option(
        None,
        "Dotted path of your own filter: a function of a group's rewards that returns the reason to drop the group, or None; "
        f"{EQUAL_REWARDS} drops groups that teach nothing. null means no filter.",
    )

    @property
    def env_count(self) -> int:
        """Environments that exist at the same time."""
        return self.num_env_groups * (self.group_size + self.group_size_redundancy)


@dataclass(frozen=True, kw_only=True)
class PassRateMixtureConfig:
    """Weights a tag by its part of num_groups_partition times least + (1 - least) 4 p (1 - p), with p its measured pass rate:
    tags that always succeed, or never, teach nothing."""

    least: float = option(0.25, "What is left of the part of a tag that always succeeds, or never.", bounds=Bounds(gt=0, le=1))
    groups: int = option(16, "A tag's pass rate is that of its last so many groups.", bounds=COUNT)


@dataclass(frozen=True, kw_only=True)
class RewardNormalizationConfig:
    """Normalisation of the rewards of episodes before the advantage estimator."""

    grouping: RewardGrouping = option(
        "traj_group_id",
        "Who is compared: all episodes (batch), those of a tag, those of a group (traj_group_id), or, step_reinforce only, "
        "turns from the same state of a group's environment (state).",
    )
    norm_mean_type: TurnScope | None = option(None, "Subtract the mean over the grouping (group) or over all (batch).")
    norm_std_type: TurnScope | None = option(None, "Divide by the deviation over the grouping (group) or over all (batch).")


@dataclass(frozen=True, kw_only=True)
class AgenticValidationConfig:
    generating_args: GeneratingArguments = option(GeneratingArguments(), "Sampling.")


@dataclass(frozen=True, kw_only=True)
class AgenticValidationSet:
    """A validation set of episodes, the same at every evaluation."""

    env_manager: EnvManagerConfig = option(EnvManagerConfig(), "Which episodes; group_size: how many in each environment.")
    generating_args: GeneratingArguments | None = option(None, "Sampling; null means training's.")


@dataclass(frozen=True, kw_only=True)
class AgenticConfig(PPOConfig):
    kind = "agentic"
    multi_turn = True
    validation_block = "val_env_manager: {...}"
    group_size_key = "train_env_manager.group_size"
    exp_name: str = option("agentic", "Name of the run; its files go to <output_dir>/<exp_name>.")
    refused_estimators = {  # noqa: RUF012
        "remax": "takes a greedy response as baseline; an episode has no such thing",
        "raft": "keeps responses of a group; an episode has many",
    }

    custom_envs: dict[str, EnvConfig] = option({}, "Kinds of environments by tag.")
    train_env_manager: EnvManagerConfig = option(EnvManagerConfig(), "Training episodes.")
    pass_rate_mixture: PassRateMixtureConfig | None = option(
        None,
        "How often each tag is played, by the pass rates that this run has measured; null means as num_groups_partition says.",
    )
    val_env_manager: EnvManagerConfig | None = option(None, "Validation episodes, the same at every evaluation; null means none.")
    validation: AgenticValidationConfig | None = option(None, "Sampling of validation episodes; null means training's.")
    validation_sets: dict[str, AgenticValidationSet] = option(
        {}, "More validation sets by name, each with its episodes and sampling."
    )
    gateway_host: str = option(
        LOOPBACK,
        "Address of this machine on which programs reach the policy, or a network of it; others that reach it need a key alone.",
    )
    max_tokens_per_step: int = option(64, "Longest answer of one turn, in tokens.", bounds=COUNT)
    reward_normalization: RewardNormalizationConfig = option(RewardNormalizationConfig(), "Normalisation of rewards.")
    episode_reward_weight: float = option(1.0, "gigpo: weight of the episode's advantage.", bounds=Bounds(ge=0))
    step_reward_weight: float = option(1.0, "gigpo: weight of the step's advantage.", bounds=Bounds(ge=0))
    step_reward_gamma: float = option(
        0.95, "agentic_reinforce, step_reinforce, gigpo: discount of later rewards per turn.", bounds=Bounds(gt=0, le=1)
    )

    @property
    def reward_scopes(self) -> dict[str, str | None]:
        own, key = self.reward_normalization, "reward_normalization"
        return {f"{key}.norm_mean_type": own.norm_mean_type, f"{key}.norm_std_type": own.norm_std_type}

    @property
    def group_size(self) -> int:
        return self.train_env_manager.group_size

    @property
    def compares_in_groups(self) -> bool:
        normalization = self.reward_normalization
        of_group = normalization.grouping in ("traj_group_id", "state") and normalization.norm_mean_type == "group"
        return super().compares_in_groups or of_group

    @property
    def groups_per_step(self) -> int:
        return self.rollout_batch_size // self.group_size

    @property
    def samples_per_rollout(self) -> int:
        played = [self.custom_envs[tag] for tag in self.partition(self.train_env_manager)]
        return max((env.max_steps for env in played if env.by_turn), default=1)

    def lengths(self) -> Lengths:
        """Returns the lengths. Raises `ValueError` if sequence_length is missing or has no room for a turn."""
        if self.sequence_length is None:
            raise ValueError("sequence_length is needed: the context of an episode, all turns together")
        answer = min([self.answer_tokens(tag) for tag in self.custom_envs], default=self.max_tokens_per_step)
        if self.sequence_length <= answer:
            raise ValueError(f"sequence_length {self.sequence_length} <= max_tokens_per_step {answer}: no room for a prompt")
        return Lengths(self.sequence_length - 1, self.sequence_length, self.sequence_length)

    def answer_tokens(self, tag: str) -> int:
        """Returns the longest answer of one turn, in tokens, in environments of this tag."""
        return self.custom_envs[tag].max_tokens_per_step or self.max_tokens_per_step

    def records_turns(self, tag: str) -> bool:
        """True if turns are recorded in environments of this tag: an episode of one turn has none to go on from."""
        env = self.custom_envs[tag]
        return self.has_both_sides and env.durable_turns and env.max_steps > 1

    def partition(self, manager: EnvManagerConfig) -> dict[str, float]:
        """Returns the relative share of each tag in the groups of a manager."""
        tags = manager.tags or list(self.custom_envs)
        counts = manager.num_groups_partition or [1] * len(tags)
        return {tag: float(count) for tag, count in zip(tags, counts, strict=False) if count}

    @property
    def domain_weights(self) -> dict[str, float]:
        return self.partition(self.train_env_manager)

    @property
    def tag_to_domain(self) -> dict[str, str]:
        return {tag: tag for tag in self.custom_envs}

    @property
    def validations(self) -> dict[str, AgenticValidationSet]:
        if self.val_env_manager is None:
            return self.validation_sets
        sampling = self.validation.generating_args if self.validation else None
        main = AgenticValidationSet(env_manager=self.val_env_manager, generating_args=sampling)
        return {MAIN_SET: main} | self.validation_sets

    @property
    def validation_sampling(self) -> dict[str, GeneratingArguments]:
        training = self.actor_infer.generating_args
        return {name: validation.generating_args or training for name, validation in self.validations.items()}

    @property
    def validation_attempts(self) -> dict[str, int]:
        return {name: validation.env_manager.group_size for name, validation in self.validations.items()}

    def episodes_of(self, manager: EnvManagerConfig) -> int:
        """Returns the number of episodes of a validation set."""
        return self.val_batch_size or manager.num_env_groups * manager.group_size
