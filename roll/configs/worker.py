"""Roles: what runs on which devices, and the reward workers of a domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from roll.configs.arguments import (
    DataArguments,
    GeneratingArguments,
    ModelArguments,
    StrategyArguments,
    TrainDataArguments,
    TrainingArguments,
)
from roll.configs.device_mapping import parse_device_mapping
from roll.configs.fields import Bounds, option, required
from roll.configs.megatron import MegatronConfig


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """A role on devices."""

    worker_cls: str | None = option(None, "Dotted path of your own worker class; null means the built-in one.")
    model_args: ModelArguments = option(ModelArguments(), "Model.")
    strategy_args: StrategyArguments = option(StrategyArguments(), "Back end.")
    device_mapping: str | int | list[int] | None = option(
        None, 'Global device indices: [0, 1], "0-3,6" or "list(range(0,4))"; without accelerators each CPU slot counts as one.'
    )

    @property
    def devices(self) -> tuple[int, ...]:
        """Global device indices, one worker each; empty without `device_mapping`. Raises `ValueError` if it cannot be read."""
        return () if self.device_mapping is None else parse_device_mapping(self.device_mapping)

    @property
    def world_size(self) -> int:
        return len(self.devices)

    @property
    def data_parallel_size(self) -> int:
        """Parts that a batch is divided into: one a worker, unless several divide a model among them."""
        options = self.strategy_args.options
        return options.data_parallel_size(self.world_size) if isinstance(options, MegatronConfig) else self.world_size

    @property
    def data_parallel_ranks(self) -> tuple[int, ...]:
        """Which part each worker is given, by rank."""
        options, size = self.strategy_args.options, self.world_size
        if isinstance(options, MegatronConfig):
            return tuple(options.data_parallel_rank(rank, size) for rank in range(size))
        return tuple(range(size))


@dataclass(frozen=True, kw_only=True)
class ActorTrainConfig(WorkerConfig):
    """The policy that is trained: optimiser, prompts and loss."""

    training_args: TrainingArguments = option(TrainingArguments(), "Optimiser.")
    data_args: TrainDataArguments = option(TrainDataArguments(), "Training prompts.")
    max_tokens_per_microbatch_in_train: int = option(
        8192, "Tokens, padding included, of a micro-batch that is trained.", bounds=Bounds(ge=1)
    )
    max_tokens_per_microbatch_in_infer: int = option(
        16384, "Tokens, padding included, of a micro-batch whose log-probs are recomputed.", bounds=Bounds(ge=1)
    )
    pg_variant: str = option("ppo", "Policy loss: a built-in name, or the dotted path of your own function, my_module.my_loss.")
    gspo_clip_low: float = option(3e-4, "gspo: the sequence's ratio is clipped at 1 - this.", bounds=Bounds(gt=0, infinite=True))
    gspo_clip_high: float = option(4e-4, "gspo: the sequence's ratio is clipped at 1 + this.", bounds=Bounds(gt=0, infinite=True))
    gmpo_clip_low: float = option(0.4, "gmpo: the log-ratio is clipped at -this.", bounds=Bounds(gt=0, infinite=True))
    gmpo_clip_high: float = option(0.4, "gmpo: the log-ratio is clipped at this.", bounds=Bounds(gt=0, infinite=True))
    sapo_tau_pos: float = option(1.0, "sapo: sharpness of the gate for positive advantages.", bounds=Bounds(gt=0))
    sapo_tau_neg: float = option(1.05, "sapo: sharpness of the gate for other advantages.", bounds=Bounds(gt=0))
    tis_lower_bound: float = option(0.0, "tis: lower end of the truncated importance ratio.", bounds=Bounds(ge=0))
    tis_upper_bound: float = option(1.0, "tis: upper end of the truncated importance ratio.", bounds=Bounds(gt=0, infinite=True))
    topr_positive_weight: float = option(1.0, "topr: weight of samples with positive reward.", bounds=Bounds(gt=0))
    topr_negative_weight: float = option(1.0, "topr: weight of the other samples.", bounds=Bounds(gt=0))
    topr_ratio_level: Literal["token", "sequence"] = option(
        "sequence", "topr: the ratio of the other samples is the whole response's (the paper's) or each token's (ROLL's)."
    )
    cispo_epsilon_low: float = option(0.1, "cispo: the ratio is clipped at 1 - this.", bounds=Bounds(gt=0, infinite=True))
    cispo_epsilon_high: float = option(0.1, "cispo: the ratio is clipped at 1 + this.", bounds=Bounds(gt=0, infinite=True))
    cispo_use_unified_mask: bool = option(False, "cispo: mask the tokens that PPO would clip.")
    vespo_k_pos: float = option(2.0, "vespo: power of the sequence's ratio, positive advantages.", bounds=Bounds(ge=0))
    vespo_lambda_pos: float = option(3.0, "vespo: rate of the exponential decay, positive advantages.", bounds=Bounds(ge=0))
    vespo_k_neg: float = option(3.0, "vespo: power of the sequence's ratio, negative advantages.", bounds=Bounds(ge=0))
    vespo_lambda_neg: float = option(2.0, "vespo: rate of the exponential decay, negative advantages.", bounds=Bounds(ge=0))
    dppo_tv_delta_low: float = option(
        0.2, "dppo_tv: negative advantages push until a token's probability has fallen by this.", bounds=Bounds(gt=0, le=1)
    )
    dppo_tv_delta_high: float = option(
        0.2, "dppo_tv: positive advantages push until a token's probability has risen by this.", bounds=Bounds(gt=0, le=1)
    )
    dppo_kl_delta_low: float = option(0.05, "dppo_kl: bound of the binary KL, negative advantages.", bounds=Bounds(gt=0))
    dppo_kl_delta_high: float = option(0.05, "dppo_kl: bound of the binary KL, positive advantages.", bounds=Bounds(gt=0))
    dppo_ratio_cap: float = option(20.0, "dppo_tv, dppo_kl: the ratio is truncated here.", bounds=Bounds(gt=0, infinite=True))
    m2po_threshold: float = option(
        0.04, "m2po: outliers are left out until the mean squared log-ratio is at most this.", bounds=Bounds(gt=0)
    )
    kimi15_tau: float = option(0.1, "kimi15: weight of the squared log-ratio.", bounds=Bounds(gt=0))
    opmd_tau: float = option(1.0, "opmd: the loss is divided by 1 + this.", bounds=Bounds(ge=0))
    asymre_baseline_shift: float = option(-0.1, "asymre: added to the baseline; below 0 leans on the good samples.")


@dataclass(frozen=True, kw_only=True)
class ActorInferConfig(WorkerConfig):
    """The engines that sample from the policy, one a device."""

    strategy_args: StrategyArguments = option(StrategyArguments(strategy_name="hf_infer"), "Back end.")
    generating_args: GeneratingArguments = option(GeneratingArguments(), "Sampling.")


@dataclass(frozen=True, kw_only=True)
class ReferenceConfig(WorkerConfig):
    """The frozen policy of the KL loss."""

    strategy_args: StrategyArguments = option(StrategyArguments(strategy_name="fsdp2_infer"), "Back end.")
    max_tokens_per_microbatch_in_infer: int = option(16384, "Tokens, padding included, of a micro-batch.", bounds=Bounds(ge=1))


@dataclass(frozen=True, kw_only=True)
class CriticConfig(WorkerConfig):
    """The value model of adv_estimator: gae."""

    training_args: TrainingArguments = option(TrainingArguments(), "Optimiser.")
    max_tokens_per_microbatch_in_train: int = option(
        8192, "Tokens, padding included, of a micro-batch that is trained.", bounds=Bounds(ge=1)
    )
    max_tokens_per_microbatch_in_infer: int = option(
        16384, "Tokens, padding included, of a micro-batch whose values are computed.", bounds=Bounds(ge=1)
    )


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
    """Groups that teach nothing are dropped before training and replaced by new prompts."""

    type: Literal["no_filter", "mean_filter", "std_filter"] = option("no_filter", "Which statistic decides.")
    filter_args: QueryFilterArgs = option(QueryFilterArgs(), "Thresholds.")


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """Reward workers of one domain, on CPUs."""

    worker_cls: str = required("Dotted path of the reward worker class.")
    world_size: int = option(1, "Reward workers of this domain.", bounds=Bounds(ge=1))
    tag_included: list[str] = option([], "Tags of prompt rows that belong to this domain; empty means the domain's own name.")
    timeout_s: float = option(
        5.0, "Hard limit for grading one sample; passing it is an error, not a reward of 0.", bounds=Bounds(gt=0)
    )
    max_concurrency: int = option(2, "Samples that one worker grades at the same time.", bounds=Bounds(ge=1))
    query_filter_config: QueryFilterConfig = option(QueryFilterConfig(), "Which groups to drop and replace.")
    reward_args: dict[str, Any] = option({}, "Handed to the worker class as it stands.")

    def tags(self, domain: str) -> list[str]:
        return list(self.tag_included) or [domain]
