"""Reinforcement learning with verifiable rewards: one prompt, one response, one reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roll.core.configs.agentic import EnvFailurePolicy
from roll.core.configs.arguments import DataArguments, GeneratingArguments
from roll.core.configs.base import COUNT
from roll.core.configs.estimators import STEP_ESTIMATORS, Scope
from roll.core.configs.fields import Bounds, option, required
from roll.core.configs.ppo import MAIN_SET, PPOConfig, set_key
from roll.core.configs.rows import PairLossConfig
from roll.core.configs.sizes import Lengths
from roll.core.configs.worker import RewardConfig, ValidationConfig


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """A user's own rollout."""

    function: str = required(
        "Dotted path of a coroutine function. It is called with a chat and a prompt, and returns the reward; None leaves it to "
        "the domain's worker, which judges the last answer."
    )
    args: dict[str, Any] = option({}, "Its further arguments.")
    max_calls: int = option(16, "Most answers of a rollout.", bounds=COUNT)
    timeout_s: float = option(600.0, "A rollout that takes longer has failed.", bounds=Bounds(gt=0))
    on_failure: EnvFailurePolicy = option(
        "retry",
        "What a failed rollout costs.\n"
        "retry: it is made again, once; then the group is dropped.\n"
        "drop_sample: the group goes on without it.\n"
        "drop_group: the group is dropped.",
    )


@dataclass(frozen=True, kw_only=True)
class RLVRConfig(PPOConfig):
    kind = "rlvr"
    group_size_key = "num_return_sequences_in_group"
    refused_estimators = dict.fromkeys(STEP_ESTIMATORS, "compares the turns of multi-turn episodes; an RLVR response is one turn")

    rewards: dict[str, RewardConfig] = option({}, "Reward workers by domain.")
    rollout: RolloutConfig | None = option(None, "Rollouts of your own, in the place of one response; null means none.")
    validation: ValidationConfig | None = option(None, "Fixed prompts evaluated every eval_steps; null means none.")
    validation_sets: dict[str, ValidationConfig] = option({}, "More validation sets by name, each with its prompts and sampling.")
    total_epochs: float | None = option(
        None,
        "Passes over the training prompts, instead of max_steps: the run has total_epochs x usable prompts / rollout_batch_size "
        "steps, rounded down.",
        bounds=Bounds(gt=0),
    )
    num_return_sequences_in_group: int = option(8, "Responses per prompt: the group.", bounds=COUNT)
    is_num_return_sequences_expand: bool = option(
        False,
        "true: every response of a group goes to the engine with the least to do.\n"
        "false: a group goes to one engine, which computes its prompt once.",
    )
    prompt_length: int = option(1024, "Longest prompt; longer ones are skipped and counted.", bounds=COUNT)
    response_length: int | None = option(
        None,
        "Longest response; null means sequence_length - prompt_length, or where that is left out too: what fits model and "
        "prompts (roll check shows it), prompt_length with it unless that is written.",
        bounds=COUNT,
    )
    norm_mean_type: Scope | None = option(
        None, "Over what the mean reward is subtracted (reinforce, reinforce_plus_plus); running: all rewards so far, by domain."
    )
    norm_std_type: Scope | None = option(None, "Over what the reward is divided by its deviation; as norm_mean_type.")
    raft_best: int | None = option(
        None,
        "raft: keep so many responses of each group, those with the highest rewards; null: those that succeed.",
        bounds=COUNT,
    )
    online_pairs: PairLossConfig | None = option(
        None, "DPO in the place of a policy gradient: the best response of each group against its worst; null: none."
    )
    max_len_mask: bool = option(False, "Leave responses that were cut off at the length limit out of the loss.")
    error_max_len_clip: bool = option(
        False, "Leave responses of error_max_len_threshold tokens or more out of the loss, unless they earned the full reward."
    )
    error_max_len_threshold: int | None = option(None, "See error_max_len_clip.", bounds=COUNT)
    difficulty_mask: bool = option(
        False, "Leave groups out of the loss unless difficulty_low_threshold < mean reward < difficulty_high_threshold."
    )
    difficulty_low_threshold: float = option(0.0, "Mean reward at or below which a group is too hard.")
    difficulty_high_threshold: float = option(1.0, "Mean reward at or above which a group is too easy.")

    @property
    def pair_loss(self) -> PairLossConfig | None:
        return self.online_pairs

    @property
    def epochs(self) -> float | None:
        return self.total_epochs

    @property
    def reward_configs(self) -> dict[str, RewardConfig]:
        return self.rewards

    @property
    def reward_scopes(self) -> dict[str, str | None]:
        return {"norm_mean_type": self.norm_mean_type, "norm_std_type": self.norm_std_type}

    @property
    def group_size(self) -> int:
        return self.num_return_sequences_in_group

    @property
    def compares_in_groups(self) -> bool:
        return super().compares_in_groups or self.norm_mean_type == "group"

    @property
    def groups_per_step(self) -> int:
        return self.rollout_batch_size

    def lengths(self) -> Lengths:
        """Returns the lengths. Raises `ValueError` if neither response_length nor sequence_length is given or they do not fit."""
        prompt, response, sequence = self.prompt_length, self.response_length, self.sequence_length
        if response is None and sequence is None:
            raise ValueError("response_length or sequence_length is needed")
        response = response if response is not None else (sequence or 0) - prompt
        sequence = sequence if sequence is not None else prompt + response
        if response < 1:
            raise ValueError(f"sequence_length {sequence} - prompt_length {prompt} = {response} leaves no room for a response")
        if prompt + response > sequence:
            raise ValueError(
                f"prompt_length {prompt} + response_length {response} = {prompt + response} > sequence_length {sequence}"
            )
        return Lengths(prompt, response, sequence)

    @property
    def domain_weights(self) -> dict[str, float]:
        return self.actor_train.data_args.domain_interleave_probs or dict.fromkeys(self.rewards, 1.0)

    @property
    def tag_to_domain(self) -> dict[str, str]:
        return {tag: domain for domain, reward in self.rewards.items() for tag in reward.tags(domain)}

    @property
    def validations(self) -> dict[str, ValidationConfig]:
        return ({MAIN_SET: self.validation} if self.validation else {}) | self.validation_sets

    @property
    def data_sources(self) -> dict[str, DataArguments]:
        return super().data_sources | {set_key(name): validation.data_args for name, validation in self.validations.items()}

    @property
    def validation_sampling(self) -> dict[str, GeneratingArguments]:
        return {name: validation.generating_args for name, validation in self.validations.items()}
