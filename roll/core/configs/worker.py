"""Roles and their devices, and the reward workers of a domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from roll.core.configs.arguments import (
    AttentionName,
    DataArguments,
    EngineArguments,
    GeneratingArguments,
    ModelArguments,
    StrategyArguments,
    TrainDataArguments,
    TrainingArguments,
)
from roll.core.configs.backend_arguments import MegatronConfig
from roll.core.configs.device_mapping import parse_device_mapping
from roll.core.configs.dotted_path import Code
from roll.core.configs.engines import ENGINES, engines_that
from roll.core.configs.fields import Bounds, option, required
from roll.core.configs.losses import DEFAULT_LOSS, PolicyLossKnobs
from roll.core.configs.sizes import Dtype


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """A role on devices."""

    worker_cls: str | None = option(None, "Dotted path of your own worker class; null means the built-in one.")
    model_args: ModelArguments = option(ModelArguments(), "Model.")
    strategy_args: StrategyArguments = option(StrategyArguments(), "Back end.")
    device_mapping: str | int | list[int] | None = option(
        None,
        'Global device indices: [0, 1], "0-3,6" or "list(range(0,4))"; without accelerators each CPU slot counts as one. On one '
        "machine trainer and engines share the devices out if neither names any.",
    )

    @property
    def devices(self) -> tuple[int, ...]:
        """Global device indices, one worker each; empty without `device_mapping`. Raises `ValueError` if it cannot be parsed."""
        return () if self.device_mapping is None else parse_device_mapping(self.device_mapping)

    @property
    def world_size(self) -> int:
        return len(self.devices)

    @property
    def data_parallel_size(self) -> int:
        """Number of parts of a batch: one per worker, unless several workers divide a model, or a part's tokens, among them."""
        options = self.strategy_args.options
        if isinstance(options, EngineArguments):
            return self.world_size // options.devices_per_engine
        each = options.ranks_per_model if isinstance(options, MegatronConfig) else self.model_args.ulysses_size
        return self.world_size // each

    @property
    def data_parallel_ranks(self) -> tuple[int, ...]:
        """The data-parallel rank of each worker, by rank: the index of its part of a batch."""
        options, size = self.strategy_args.options, self.world_size
        if isinstance(options, MegatronConfig):
            return tuple(options.data_parallel_rank(rank, size) for rank in range(size))
        return tuple(part for part in range(self.data_parallel_size) for _ in range(self.model_args.ulysses_size))


@dataclass(frozen=True, kw_only=True)
class TrainedConfig(WorkerConfig):
    """A role whose weights are trained."""

    training_args: TrainingArguments = option(TrainingArguments(), "Optimiser.")
    max_tokens_per_microbatch_in_train: int = option(
        8192,
        "Tokens of a micro-batch that is trained, as they are computed: a common prefix counts once, padding counts.",
        bounds=Bounds(ge=1),
    )


@dataclass(frozen=True, kw_only=True)
class RouterReplayConfig:
    """The experts of a mixture with which the policy recomputes log-probs and trains a token."""

    mode: Literal["disable", "R3"] = option(
        "disable",
        "disable: those that the trainer's routers choose.\n"
        "R3: those that the engine's routers chose while it sampled; their weights are the trainer's. Needs hf_infer as the "
        "engine.",
    )


@dataclass(frozen=True, kw_only=True)
class PolicyConfig(TrainedConfig):
    """The policy's keys besides its loss; in the reference the loss's keys stand after these."""

    data_args: TrainDataArguments = option(TrainDataArguments(), "Training prompts.")
    max_tokens_per_microbatch_in_infer: int = option(
        16384, "As `max_tokens_per_microbatch_in_train`, where log-probs are recomputed.", bounds=Bounds(ge=1)
    )
    pg_variant: str = option(
        DEFAULT_LOSS,
        "Policy loss: a built-in name, or the dotted path of your own function, my_module.my_loss.",
    )
    router_replay: RouterReplayConfig = option(RouterReplayConfig(), "Mixtures of experts.")


@dataclass(frozen=True, kw_only=True)
class ActorTrainConfig(PolicyLossKnobs, PolicyConfig):
    """The policy that is trained: optimiser, prompts and loss."""


@dataclass(frozen=True, kw_only=True)
class ActorInferConfig(WorkerConfig):
    """The engines that sample from the policy, one a device."""

    strategy_args: StrategyArguments = option(StrategyArguments(strategy_name="hf_infer"), "Back end.")
    generating_args: GeneratingArguments = option(GeneratingArguments(), "Sampling.")


@dataclass(frozen=True, kw_only=True)
class ScoringConfig(WorkerConfig):
    """A role that computes log-probs without training."""

    strategy_args: StrategyArguments = option(StrategyArguments(strategy_name="fsdp2_infer"), "Back end.")
    max_tokens_per_microbatch_in_infer: int = option(
        16384, "Tokens of a micro-batch, as they are computed: a common prefix counts once, padding counts.", bounds=Bounds(ge=1)
    )


@dataclass(frozen=True, kw_only=True)
class ReferenceConfig(ScoringConfig):
    """The frozen policy of the KL loss."""


@dataclass(frozen=True, kw_only=True)
class TeacherConfig(ScoringConfig):
    """A frozen model of the policy's tokenizer, which scores the policy's own samples: on-policy distillation."""

    tag_included: list[str] = option([], "Tags that it teaches; empty means all that no other teacher names.")
    opd_kl_coef: float | list[float] = option(
        1.0,
        "Weight of log p_teacher - log p_policy in the advantage, or of the divergence (SFT: its share). [first, last]: linear.",
        bounds=Bounds(ge=0),
    )
    hint_key: str | None = option(None, "RLVR: column of the prompts with a hint that it is given and the policy is not.")
    hint_template: str = option("{prompt}\n\n{hint}", "Its prompt, or in its place the last message of the user.")
    live: bool = option(False, "It is the policy, with the weights that a step starts from; it needs a hint, and no devices.")
    endpoint: str | None = option(None, "It is asked there, http://host:port/v1, for prompt_logprobs as vLLM's server has them.")

    def weight(self, step: int, steps: int) -> float:
        """Returns the weight in a step of a run of `steps`, counted from 0."""
        if not isinstance(self.opd_kl_coef, list):
            return self.opd_kl_coef
        first, last = self.opd_kl_coef
        return first + (last - first) * step / max(steps - 1, 1)


@dataclass(frozen=True, kw_only=True)
class ActorLogProbConfig(ScoringConfig):
    """A copy of the policy that recomputes old log-probs instead of actor_train, and loads each published version."""

    lag: int | Literal["auto"] = option(
        "auto",
        "With which version it scores a step's groups.\n"
        "0: the newest, for which the step waits.\n"
        "1: the one before, while the step before trains.\n"
        "auto: 1 from async_generation_ratio 1 on, else 0.",
        bounds=Bounds(ge=0, le=1),
    )


@dataclass(frozen=True, kw_only=True)
class CriticConfig(TrainedConfig):
    """The value model of adv_estimator: gae."""

    max_tokens_per_microbatch_in_infer: int = option(
        16384, "As `max_tokens_per_microbatch_in_train`, where values are computed.", bounds=Bounds(ge=1)
    )


TrainingRole = ActorTrainConfig | ActorLogProbConfig | ReferenceConfig | TeacherConfig | CriticConfig
"""The roles that run on a training back end, frozen ones included."""
RoleConfig = ActorInferConfig | TrainingRole
TEACHERS = "teachers."
"""Begins the name of a teacher's role: teachers.<name>."""


@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """A fixed set of prompts with its own sampling, evaluated on the engines of actor_infer."""

    data_args: DataArguments = option(DataArguments(), "Validation prompts.")
    generating_args: GeneratingArguments = option(GeneratingArguments(), "Sampling.")


@dataclass(frozen=True, kw_only=True)
class QueryFilterArgs:
    threshold_up: float | None = option(None, "mean_filter: drop groups whose mean reward is this or more.")
    threshold_down: float | None = option(None, "mean_filter: drop groups whose mean reward is this or less.")
    std_threshold: float | None = option(None, "std_filter: drop groups whose reward deviates this much or less.")


@dataclass(frozen=True, kw_only=True)
class QueryFilterConfig:
    """Drops groups that teach nothing before training, and replaces them by new prompts."""

    type: Literal["no_filter", "mean_filter", "std_filter"] = option("no_filter", "Which statistic decides.")
    filter_args: QueryFilterArgs = option(QueryFilterArgs(), "Thresholds.")
    group_filter_cls: str | None = option(
        None,
        "Dotted path of your own filter, instead of `type`: a function of a group's rewards that returns the reason to drop it, "
        "or null.",
    )


@dataclass(frozen=True, kw_only=True)
class ShapingConfig:
    """Terms added to a reward worker's judgement in training. Validation counts the judgement alone."""

    weight: float = option(1.0, "Factor of the judgement.")
    overlong_buffer: int = option(
        0,
        "Tokens before the longest response within which overlong_penalty grows from nothing to its whole (DAPO's soft overlong "
        "punishment); 0 means none.",
        bounds=Bounds(ge=0),
    )
    overlong_penalty: float = option(1.0, "Taken from a response of the longest length.", bounds=Bounds(ge=0))
    repetition_penalty: float = option(
        0.0, "Taken in proportion to the share of n-grams of words that have occurred before.", bounds=Bounds(ge=0)
    )
    repetition_ngram: int = option(3, "Words of an n-gram.", bounds=Bounds(ge=1))
    format_order: list[str] = option(
        [], 'Texts that a response must have, each once and in this order, e.g. ["</think>", "<answer>", "</answer>"].'
    )
    format_penalty: float = option(0.0, "Taken from a response that does not have format_order.", bounds=Bounds(ge=0))


@dataclass(frozen=True, kw_only=True)
class JudgingModelConfig:
    """A model that judges, on its own devices. It stays in their memory for the whole run."""

    engines: ClassVar[tuple[str, ...]]

    model_name_or_path: str = required("Folder of its Hugging Face checkpoint, or its name on the hub.", path="model")
    device_mapping: str | int | list[int] = required(
        "Global device indices, as a role has them: one engine each, or as its options say."
    )
    strategy_args: StrategyArguments = option(
        StrategyArguments(strategy_name="hf_infer"), "Its engine: hf_infer or vllm; a judge's may be sglang."
    )
    dtype: Dtype = option("auto", "Compute type; auto means bf16 on an accelerator and fp32 on a CPU.")
    attn_implementation: AttentionName = option("sdpa", "hf_infer: attention implementation of transformers.")
    max_length: int = option(
        8192, "Longest text that it is given, with its reply, in tokens; a longer one has no judgement.", bounds=Bounds(ge=1)
    )

    @property
    def devices(self) -> tuple[int, ...]:
        """Global device indices, read like `WorkerConfig.devices`."""
        return parse_device_mapping(self.device_mapping)


@dataclass(frozen=True, kw_only=True)
class JudgeModelConfig(JudgingModelConfig):
    """A language model that is asked for a verdict."""

    engines = tuple(ENGINES)

    generating_args: GeneratingArguments = option(
        GeneratingArguments(temperature=0.0, max_new_tokens=512), "How its reply is sampled."
    )


@dataclass(frozen=True, kw_only=True)
class RewardModelConfig(JudgingModelConfig):
    """A sequence classifier with one output, which is the reward."""

    engines = engines_that("scorer")

    max_tokens_per_microbatch_in_infer: int = option(
        16384, "Tokens, padding included, of a batch of texts; a longer text is a batch of its own.", bounds=Bounds(ge=1)
    )


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """Reward workers of one domain, on CPUs or with a judge on devices."""

    worker_cls: Code = required("Dotted path of the reward's class or function; in Python also the class or function itself.")
    world_size: int = option(1, "Reward workers of this domain.", bounds=Bounds(ge=1))
    tag_included: list[str] = option([], "Tags of prompt rows that belong to this domain; empty means the domain's own name.")
    timeout_s: float = option(
        5.0, "Hard limit for grading one sample; passing it is an error, not a reward of 0.", bounds=Bounds(gt=0)
    )
    max_concurrency: int = option(2, "Samples that one worker grades at the same time.", bounds=Bounds(ge=1))
    on_reward_error: Literal["retry", "drop_sample", "drop_group"] = option(
        "retry",
        "What happens when the judge fails. All are counted.\n"
        "retry: it is asked once more; then the group is dropped.\n"
        "drop_sample: it is asked once more; then the sample is dropped, and the group if fewer than two are left.\n"
        "drop_group: the group is dropped immediately.",
    )
    success_at: float | None = option(
        None,
        "Judgement from which on validation counts a response as a success; null means what the domain's reference answers earn "
        "as responses, or 1 where they cannot be asked.",
    )
    shaping: ShapingConfig = option(ShapingConfig(), "Weight, and penalties for length, repetition and form.")
    query_filter_config: QueryFilterConfig = option(QueryFilterConfig(), "Which groups to drop and replace.")
    judge: JudgeModelConfig | None = option(
        None, "LLMJudgeRewardWorker: the model that judges, one reward worker an engine; null means the server in reward_args."
    )
    reward_model: RewardModelConfig | None = option(
        None, "RewardModelWorker: the classifier whose output is the reward, one reward worker an engine."
    )
    reward_args: dict[str, Any] = option({}, "Handed to the worker class as it stands.")

    @property
    def models(self) -> dict[str, JudgingModelConfig]:
        """The judging models with their own devices, by key; at most one in a valid configuration."""
        return {name: model for name in ("judge", "reward_model") if (model := getattr(self, name)) is not None}

    def tags(self, domain: str) -> list[str]:
        return list(self.tag_included) or [domain]
