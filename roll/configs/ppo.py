"""The algorithm of a pipeline and the roles that carry it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from roll.configs.base import BaseConfig
from roll.configs.fields import Bounds, option
from roll.configs.worker import ActorInferConfig, ActorTrainConfig, ReferenceConfig

AdvantageEstimator = Literal["reinforce", "grpo", "rloo", "dr_grpo"]
NormType = Literal["batch", "group"]
LossAggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]

POSITIVE = Bounds(gt=0)


@dataclass(frozen=True, kw_only=True)
class PPOConfig(BaseConfig):
    # Rewards to advantages.
    adv_estimator: AdvantageEstimator = option("grpo", "How advantages come from the rewards of a group.")
    norm_mean_type: NormType | None = option(None, "Over what the mean reward is subtracted (reinforce).")
    norm_std_type: NormType | None = option(None, "Over what the reward is divided by its deviation (reinforce).")
    reward_clip: float | None = option(None, "Rewards are clipped to ± this after normalisation.", bounds=POSITIVE)
    advantage_clip: float | None = option(None, "Advantages are clipped to ± this.", bounds=POSITIVE)
    whiten_advantages: bool = option(False, "Shift and scale advantages to mean 0, deviation 1 over the tokens of the batch.")

    # Loss.
    ppo_epochs: int = option(1, "Passes over each batch.", bounds=Bounds(ge=1))
    max_grad_norm: float = option(1.0, "The gradient is clipped to this global norm.", bounds=Bounds(gt=0, infinite=True))
    pg_clip: float = option(0.2, "PPO: the ratio is clipped to 1 ± this.", bounds=POSITIVE)
    use_pg_clip_range: bool = option(False, "PPO: clip to [1 - pg_clip_low, 1 + pg_clip_high] instead.")
    pg_clip_low: float = option(0.2, "PPO: lower clip, with use_pg_clip_range.", bounds=POSITIVE)
    pg_clip_high: float = option(0.2, "PPO: upper clip, with use_pg_clip_range.", bounds=POSITIVE)
    dual_clip_loss: bool = option(False, "PPO: bound the loss of negative advantages at dual_clip_c times the advantage.")
    dual_clip_c: float = option(3.0, "PPO: that bound.", bounds=Bounds(gt=1))
    loss_agg_mode: LossAggregation = option("seq-mean-token-mean", "How token losses become one number.")
    entropy_loss_coef: float = option(0.0, "Weight of the entropy bonus.", bounds=Bounds(ge=0))
    use_kl_loss: bool = option(False, "Add the k3 estimate of the KL divergence from the reference policy to the loss.")
    kl_loss_coef: float = option(0.0, "Its weight.", bounds=Bounds(ge=0))
    enable_old_logprobs_recompute: bool = option(
        False, "Recompute log-probs at the start of a step and take ratios to them (decoupled), not to the sampler's."
    )

    # Roles.
    actor_train: ActorTrainConfig = option(ActorTrainConfig(), "The policy that is trained.")
    actor_infer: ActorInferConfig = option(ActorInferConfig(), "The engines that sample from it, one a device.")
    reference: ReferenceConfig | None = option(None, "The frozen policy of the KL loss; started only with use_kl_loss.")
