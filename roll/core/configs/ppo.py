"""The algorithm of a pipeline and its roles."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from roll.core.configs.arguments import DataArguments, GeneratingArguments
from roll.core.configs.base import BaseConfig
from roll.core.configs.distillation import DistillationConfig
from roll.core.configs.estimators import ESTIMATORS, OWN_FUNCTION, AdvantageEstimator, Estimator
from roll.core.configs.fields import Bounds, option
from roll.core.configs.losses import (
    DUAL_CLIP,
    PG_CLIP,
    KLEstimator,
    KLLossEstimator,
    LossAggregation,
    TrainInferCorrectionConfig,
)
from roll.core.configs.rows import PairLossConfig, WarmStartConfig
from roll.core.configs.sizes import Lengths
from roll.core.configs.staleness import StalenessTuningConfig
from roll.core.configs.watching import AlarmAction
from roll.core.configs.worker import (
    TEACHERS,
    ActorInferConfig,
    ActorLogProbConfig,
    ActorTrainConfig,
    CriticConfig,
    ReferenceConfig,
    RewardConfig,
    RoleConfig,
    TeacherConfig,
    WorkerConfig,
)

MAIN_SET = "validation"
"""The validation set of the keys `validation` and `val_env_manager`; it comes first, and others have their own name."""

AUDITS = "roll-audits"
"""The folder of audits, relative to the working directory of commands."""
AUDITED = "audits.json"
"""The file in a run's folder with the run's audits."""

POSITIVE = Bounds(gt=0)
SHARE = Bounds(ge=0, le=1)


@dataclass(frozen=True, kw_only=True)
class PPOConfig(BaseConfig, ABC):
    kind: ClassVar[Literal["rlvr", "agentic", "sft", "dpo"]]
    from_rows: ClassVar[bool] = False
    """True if samples are rows of a file: nothing that is trained is generated."""
    multi_turn: ClassVar[bool] = False
    """True if rollouts are episodes of many turns."""
    validation_block: ClassVar[str] = "validation: {data_args: {file_name: ...}}"
    """The key of the main validation set, with the least that it needs."""
    group_size_key: ClassVar[str]
    """The key of `group_size`."""
    refused_estimators: ClassVar[Mapping[str, str]]
    """The advantage estimators that the pipeline cannot use, with the reasons."""

    audit: Literal["optional", "required"] = option(
        "optional",
        f"What roll env audit --config_name has kept in {AUDITS}, in the folder where the run is started.\n"
        "optional: roll check tells it.\n"
        "required: no run without an audit of each of its environments, or rewards, as it is now, that finds nothing wrong.",
    )
    reward_watch: AlarmAction | None = option(
        "warn",
        "Done when the policy collapses, or seems to earn its reward by length, a word, one answer to all or a player's exploit: "
        "warn; stop: end the run, with a checkpoint, status stopped; null: nothing is looked for.",
    )

    # Rewards to advantages.
    adv_estimator: AdvantageEstimator | str = option(
        "grpo", "How advantages come from rewards; your own function by its dotted path, my_package.my_module.my_estimator."
    )
    reward_clip: float | None = option(
        None,
        "Rewards are clipped to ± this after normalisation, adv_estimator's included; so is the KL penalty of each token.",
        bounds=POSITIVE,
    )
    gamma: float = option(
        1.0, "Discount of later rewards. RLVR: per response token. Agentic: per turn.", bounds=Bounds(gt=0, le=1)
    )
    add_token_level_kl: bool = option(False, "Subtract the KL divergence from the reference policy from each token's reward.")
    kl_penalty: KLEstimator = option("k1", "Its estimator.")
    init_kl_coef: float = option(0.2, "Its weight, or the first one with target_kl.", bounds=Bounds(ge=0))
    target_kl: float | None = option(None, "Adapt the weight to this mean KL divergence of a token.", bounds=POSITIVE)
    kl_horizon: int = option(10000, "target_kl: samples in which the weight changes by at most a fifth.", bounds=Bounds(ge=1))
    whiten_rewards: bool = option(False, "Divide token rewards by their deviation over the trained tokens of the batch.")
    advantage_clip: float | None = option(None, "Advantages are clipped to ± this.", bounds=POSITIVE)
    lambd: float = option(
        0.95, "gae: λ; the smaller, the more the critic's errors bias advantages, and the less they vary.", bounds=SHARE
    )
    whiten_advantages: bool = option(
        False, "Shift and scale advantages to mean 0, deviation 1 over the tokens of the batch; RLVR: each domain on its own."
    )

    # Loss.
    ppo_epochs: int = option(1, "Passes over each batch.", bounds=Bounds(ge=1))
    max_grad_norm: float = option(1.0, "The gradient is clipped to this global norm.", bounds=Bounds(gt=0, infinite=True))
    pg_clip: float | list[float] = option(
        PG_CLIP, "PPO: the ratio is clipped to 1 ± this; [low, high]: to [1 - low, 1 + high].", bounds=POSITIVE
    )
    dual_clip_c: float | None = option(
        None, "PPO, gspo: the loss of negative advantages is at most -this times the advantage; null: no bound.", bounds=DUAL_CLIP
    )
    loss_agg_mode: LossAggregation = option("seq-mean-token-mean", "How token losses become one number.")
    entropy_loss_coef: float = option(0.0, "Weight of the entropy bonus.", bounds=Bounds(ge=0))
    use_kl_loss: bool = option(False, "Add an estimate of the KL divergence from the reference policy to the loss.")
    kl_loss_coef: float = option(0.0, "Its weight.", bounds=Bounds(ge=0))
    kl_loss_type: KLLossEstimator = option("k3", "Its estimator; with + it has the gradient of k2, the unbiased one on-policy.")
    kl_loss_clamp: float | None = option(
        None,
        "The estimate of each token is limited to ± this, beyond which it does not pull any more: k3 grows as e^d. 10 is common; "
        "null is no limit.",
        bounds=POSITIVE,
    )
    value_clip: float | None = option(
        None, "gae: within a step a value moves by no more than this; null is no limit.", bounds=POSITIVE
    )
    critic_warmup: int = option(
        0, "gae: the first steps, in which only the critic is trained and the policy stays as it is.", bounds=Bounds(ge=0)
    )
    old_logprobs: Literal["auto", "bypass", "recompute"] = option(
        "auto",
        "What ratios are taken to.\n"
        "bypass: the sampler's log-probs.\n"
        "recompute: those recomputed at the start of a step, with the loss weighted for the difference (decoupled).\n"
        "auto: bypass, unless pg_variant, is_weight or an engine in FP8 needs the others. gspo does at async_generation_ratio 0, "
        "unless the engine is hf_infer.",
    )
    keep_sampling_mask: bool | None = option(
        None,
        "What log-probs are of where top_p or top_k cut the distribution that is sampled.\n"
        "true: the cut distribution. The engine says which tokens it kept, and policy, old and reference log-probs are taken "
        "over the same tokens.\n"
        "false: the whole distribution, as in ROLL; then the gradient is not that of the policy which sampled.\n"
        "null: true where the engine can.",
    )
    train_infer_correction: TrainInferCorrectionConfig = option(
        TrainInferCorrectionConfig(), "What to do about the distance between the policy that is trained and the one that sampled."
    )
    staleness_tuning: StalenessTuningConfig = option(
        StalenessTuningConfig(), "What follows the measured effective sample size (ESS) of the importance weights."
    )
    mismatch_alarm: float | None = option(
        0.1,
        "Warn if an engine's log-probs differ from the trainer's, for the same weights, by more than this many nats a token on "
        "average over a step. null: never.",
        bounds=POSITIVE,
    )

    # Roles.
    actor_train: ActorTrainConfig = option(ActorTrainConfig(), "The policy that is trained.")
    actor_infer: ActorInferConfig = option(
        ActorInferConfig(), "The engines that sample from it: one a device, or one for tensor x pipeline parallel devices."
    )
    actor_log_prob: ActorLogProbConfig | None = option(
        None, "A copy of the policy on devices of its own, which recomputes old log-probs; null: actor_train does."
    )
    reference: ReferenceConfig | None = option(
        None, "The frozen policy of the KL terms; started only with use_kl_loss or add_token_level_kl."
    )
    critic: CriticConfig | None = option(None, "The value model that adv_estimator: gae needs, and nothing else.")
    teachers: dict[str, TeacherConfig] = option(
        {}, "Frozen models, by name, whose log-probs of the policy's tokens are part of advantages or loss."
    )
    distillation: DistillationConfig = option(DistillationConfig(), "What is learnt from the teachers.")

    warm_start: WarmStartConfig | None = option(None, "Supervised fine-tuning before the first rollouts; null: none.")

    @property
    def warm_steps(self) -> int:
        """Returns the number of steps that train rows of files before the first rollouts."""
        return self.warm_start.steps if self.warm_start is not None and self.mode in ("both", "replay") else 0

    @property
    def pair_loss(self) -> PairLossConfig | None:
        """The loss of pairs of answers, in which a token's weight follows from the log-probs of both; None without one."""
        return None

    @property
    def pg_variant(self) -> str:
        weighted = self.from_rows or self.pair_loss is not None
        return "roll.topologies.rows.row_losses.likelihood" if weighted else self.actor_train.pg_variant

    @property
    def uses_reference(self) -> bool:
        pairs = self.pair_loss
        return self.use_kl_loss or self.add_token_level_kl or (pairs is not None and pairs.loss != "simpo")

    @property
    def estimator(self) -> Estimator:
        """The traits of adv_estimator."""
        return ESTIMATORS.get(self.adv_estimator, OWN_FUNCTION)

    @property
    def compares_in_groups(self) -> bool:
        """True if a group whose rewards are all equal teaches nothing."""
        return self.estimator.group_relative

    @property
    def uses_critic(self) -> bool:
        return self.estimator.needs_critic

    @property
    def uses_greedy_baseline(self) -> bool:
        return self.estimator.needs_greedy

    def configured_roles(self) -> dict[str, RoleConfig]:
        """Returns the configured roles of this process's side by name, started or not."""
        roles: dict[str, RoleConfig | None] = {
            "actor_train": self.actor_train,
            "actor_infer": self.actor_infer,
            "actor_log_prob": self.actor_log_prob,
            "reference": self.reference,
            "critic": self.critic,
            **{f"{TEACHERS}{name}": teacher for name, teacher in self.teachers.items() if not (teacher.live or teacher.endpoint)},
        }
        half = {"both": roles.keys(), "explore": {"actor_infer"}, "bench": {"actor_infer"}}
        unused = set() if self.mode == "replay" and self.replay.generate else {"actor_infer"}
        here = half.get(self.mode, roles.keys() - unused)
        return {name: role for name, role in roles.items() if role is not None and name in here}

    def roles(self) -> dict[str, RoleConfig]:
        """Returns the roles that a run starts, by name."""
        unused = {"reference": not self.uses_reference, "critic": not self.uses_critic}
        return {name: role for name, role in self.configured_roles().items() if not unused.get(name)}

    def teacher_of(self, tag: str) -> str | None:
        """Returns the role of the teacher of a tag: one that names it, else one that names none."""
        named = [name for name, teacher in self.teachers.items() if tag in teacher.tag_included]
        named += [name for name, teacher in self.teachers.items() if not teacher.tag_included]
        return f"{TEACHERS}{named[0]}" if named else None

    def on_devices_of(self, name: str, at_once: bool) -> tuple[str, ...]:
        """Returns the other roles on some of a role's devices: those that work `at_once` with it, or in turns (`sharing`)."""
        roles, overlap = self.roles(), self.sharing == "overlap"
        shared = [other for other in roles if other != name and set(roles[other].devices) & set(roles[name].devices)]
        return tuple(other for other in shared if (overlap and "actor_infer" in (name, other)) == at_once)

    @property
    def lends_weights(self) -> bool:
        """True if the trainer's ranks lend their buckets to engines that work on their devices at the same time."""
        return self.model_update_transport == "ipc" and "actor_train" in self.on_devices_of("actor_infer", at_once=True)

    def model_folder(self, role: WorkerConfig) -> str:
        """Returns the folder of the role's initial Hugging Face checkpoint; empty if none is named."""
        return role.model_args.model_name_or_path or self.pretrain or ""

    # What a pipeline's own keys mean to the parts that all pipelines share.

    @property
    def reward_configs(self) -> Mapping[str, RewardConfig]:
        """Returns the reward workers by domain; an agentic run has none."""
        return {}

    @property
    def reward_scopes(self) -> Mapping[str, str | None]:
        """Over what the mean reward is subtracted, and over what the deviation is divided by, by key."""
        return {}

    @property
    @abstractmethod
    def group_size(self) -> int:
        """Rollouts of one group: answers to one prompt, episodes of one environment."""

    @property
    @abstractmethod
    def groups_per_step(self) -> int: ...

    @property
    def rollouts_per_step(self) -> int:
        return self.groups_per_step * self.group_size

    @property
    def samples_per_rollout(self) -> int:
        """The maximum number of samples from a rollout: more than one if every turn of an episode is a sample."""
        return 1

    @property
    def epochs(self) -> float | None:
        """Passes over prompts or rows (`total_epochs`) that say how long the run is; None: `max_steps` says it."""
        return None

    def in_steps(self, rows: int) -> Self:
        """Returns a copy with `max_steps` in place of `epochs`, if these are given. `rows`: number of prompts or rows."""
        if self.epochs is None:
            return self
        steps: dict[str, Any] = {"max_steps": math.floor(self.epochs * rows / self.groups_per_step + 1e-9), "total_epochs": None}
        return replace(self, **steps)

    @property
    def data_sources(self) -> dict[str, DataArguments]:
        """The data of all prompts or rows but those of a warm start, by the key of their owner."""
        return {"actor_train": self.actor_train.data_args}

    @property
    def images_dir(self) -> str | None:
        """The folder of the images of all processes of the run; None without any."""
        shown = any(data.images is not None for data in self.data_sources.values())
        return f"{self.shared_dir}/images" if shown else None

    @abstractmethod
    def lengths(self) -> Lengths:
        """Returns the lengths. Raises `ValueError` if the keys do not fit together."""

    @property
    @abstractmethod
    def domain_weights(self) -> dict[str, float]:
        """Returns the relative sampling weight of each domain (RLVR) or tag (agentic)."""

    @property
    @abstractmethod
    def tag_to_domain(self) -> dict[str, str]:
        """Returns the domain of each tag; an environment's tag is its own domain."""

    @property
    @abstractmethod
    def validations(self) -> Mapping[str, object]:
        """All validation sets, by name."""

    @property
    @abstractmethod
    def validation_sampling(self) -> dict[str, GeneratingArguments]:
        """Returns the sampling of each validation set, by the set's name."""

    @property
    def validation_attempts(self) -> dict[str, int]:
        """Returns the rollouts of each prompt or environment of each validation set, by the set's name."""
        return {name: sampling.num_return_sequences or 1 for name, sampling in self.validation_sampling.items()}


def set_key(name: str) -> str:
    """Returns the key that describes a validation set."""
    return name if name == MAIN_SET else f"validation_sets.{name}"
