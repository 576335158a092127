"""Computes the advantages of a step's tokens from the scores of its samples; here for RLVR, where rewards are normalised each
domain on its own, so that an easy domain does not shift a hard one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from roll.core.algorithms.distillation import with_teachers
from roll.core.algorithms.kl import KLController, approx_kl
from roll.core.algorithms.returns import Action, discounted_returns, gae, on_last_token
from roll.core.algorithms.reward_normalization import RunningMoments, normalize_rewards
from roll.core.algorithms.sequence_advantages import clip, remax, sequence_advantages, whiten
from roll.core.configs.estimators import WHITENED
from roll.core.configs.plain import JsonMapping, JsonObject
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.rlvr import RLVRConfig
from roll.core.data.numbers import are_equal
from roll.core.data.sample import Sample, SampleGroup
from roll.core.data.token_batch import TokenBatch
from roll.core.trainer.batch import rollout_metrics


class AdvantageEstimate(NamedTuple):
    rewards: Tensor
    """[S] normalised rewards, for metrics."""
    advantages: Tensor
    """[S] of whole samples, or [N] of tokens."""
    of_tokens: bool = False
    populations: Tensor | None = None
    """[S] int64: `whiten_advantages` is done among samples of one number. None: among all."""


class Advantages(ABC):
    """The advantages of a pipeline. Called once a step, in order: state carried from step to step (the KL coefficient, and any
    state of a pipeline's own estimate) moves on, and is part of a checkpoint."""

    discounted: Action = "token"
    """The unit that `gamma` discounts by."""

    def __init__(self, config: PPOConfig) -> None:
        self._config = config
        self._kl = KLController(config.init_kl_coef, config.target_kl, config.kl_horizon)

    @abstractmethod
    def estimate(self, batch: TokenBatch, groups: Sequence[SampleGroup]) -> AdvantageEstimate:
        """Normalises the rewards, applies the estimator, and clips its results."""

    def trains(self, group: SampleGroup, sample: Sample) -> bool:
        """Returns True if the tokens of the sample are trained."""
        return True

    def describe(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Returns metrics of a step's samples besides rewards and lengths."""
        return {}

    def rollouts(self, groups: Sequence[SampleGroup]) -> dict[str, float]:
        """Returns metrics of a step's rewards and lengths."""
        return rollout_metrics(groups)

    def __call__(self, batch: TokenBatch, groups: Sequence[SampleGroup]) -> tuple[TokenBatch, dict[str, float]]:
        """Returns the batch with advantages, and metrics: the estimate, then token-level KL, discount, whitening,
        teachers, clipping.

        Without KL and discount all trained tokens of a sample get its advantage. A token-level estimate is only whitened and
        clipped. With a critic the estimate of a sample is its reward, and the batch has values: it gets the critic's returns,
        too."""
        config = self._config
        rewards, advantages, of_tokens, populations = self.estimate(batch, groups)
        metrics = _spread("critic/rewards", rewards)
        if config.compares_in_groups:
            metrics["rewards/groups_without_signal"] = sum(are_equal(group.outcomes) for group in groups) / len(groups)
        if of_tokens:
            advantages = advantages * batch.loss_mask
        elif config.uses_critic or config.add_token_level_kl or config.whiten_rewards or config.gamma != 1:
            batch, more = self._of_tokens(batch, advantages)
            advantages = batch.advantages
            metrics |= more
        else:
            advantages = advantages[batch.sample_ids] * batch.loss_mask
        if config.adv_estimator in WHITENED:
            advantages = whiten(advantages, batch.loss_mask)
        elif config.whiten_advantages:
            among = None if populations is None else populations[batch.sample_ids]
            advantages = whiten(advantages, batch.loss_mask, among=among)
        if batch.teacher_logprobs is not None:
            advantages, more = with_teachers(batch, advantages)
            metrics |= more
        advantages = clip(advantages, config.advantage_clip)
        return batch.with_(advantages=advantages), metrics | _spread("critic/advantages", advantages[batch.loss_mask])

    def of_part(self, batch: TokenBatch, groups: Sequence[SampleGroup]) -> TokenBatch:
        """Returns the part of a step with advantages, where they do not depend on the rest. Carries no state on: the call with
        the whole step does that."""
        state = self.state()
        try:
            return self(batch, groups)[0]
        finally:
            self.restore(state)

    def _of_tokens(self, batch: TokenBatch, per_sample: Tensor) -> tuple[TokenBatch, dict[str, float]]:
        """Returns token rewards (the sample's reward on its last trained token, minus the KL penalty on each) as returns or, with
        a critic, as advantages over its values."""
        config, metrics = self._config, {}
        padded = batch.padded()
        mask = padded.loss_mask
        rewards = on_last_token(per_sample, mask)
        if config.add_token_level_kl:
            if padded.reference_logprobs is None:
                raise ValueError("add_token_level_kl needs the log-probs of the reference")
            # The policy that sampled, or the proximal one if it was recomputed: no gradient flows through a reward.
            policy = padded.behaviour_logprobs if padded.proximal_logprobs is None else padded.proximal_logprobs
            known = mask & policy.isfinite() & padded.reference_logprobs.isfinite()
            kl = approx_kl(policy, padded.reference_logprobs, config.kl_penalty, known)
            rewards = rewards - clip(self._kl.coefficient * kl, config.reward_clip)
            trained = mask.sum(1)
            if bool(trained.any()):
                mean = float((kl.sum(1) / trained.clamp(min=1)).sum() / (trained > 0).sum())
                metrics = {"critic/kl": mean, "critic/kl_coef": self._kl.coefficient}
                self._kl.update(mean, len(batch))
        if config.whiten_rewards:
            rewards = whiten(rewards, mask, shift=False)
        if not config.uses_critic:
            returns = discounted_returns(rewards, mask, config.gamma, self.discounted)
            return batch.with_(advantages=padded.flatten(returns)), metrics
        if padded.values is None:
            raise ValueError("adv_estimator gae needs the critic's values")
        advantages, returns = gae(rewards, padded.values, mask, config.gamma, config.lambd)
        return batch.with_(advantages=padded.flatten(advantages), returns=padded.flatten(returns)), metrics

    def state(self) -> JsonObject:
        """Returns plain values for a checkpoint."""
        return {"kl_coef": self._kl.coefficient}

    def restore(self, state: JsonMapping) -> None:
        """Continues from `state()`. A coefficient that does not adapt stays as configured."""
        if self._config.target_kl is not None:
            self._kl.coefficient = state["kl_coef"]


def _spread(name: str, values: Tensor) -> dict[str, float]:
    if values.numel() == 0:
        return {}
    return {f"{name}/mean": float(values.mean()), f"{name}/max": float(values.max()), f"{name}/min": float(values.min())}


class RLVRAdvantages(Advantages):
    """Advantages of RLVR. Carries the running reward moments of each domain from step to step."""

    def __init__(self, config: RLVRConfig) -> None:
        super().__init__(config)
        self._rlvr = config
        self._running: dict[str, RunningMoments] = {}

    def trains(self, group: SampleGroup, sample: Sample) -> bool:
        """False for samples that `raft` rejects, that were cut off at the length limit (`max_len_mask`), for long ones that are
        not right (`error_max_len_clip`), and for groups that are too easy or too hard (`difficulty_mask`)."""
        config = self._rlvr
        if config.adv_estimator == "raft" and not _kept(group, sample, config.raft_best):
            return False
        if config.max_len_mask and sample.finish_reason == "length":
            return False
        longest = config.error_max_len_threshold
        if config.error_max_len_clip and longest is not None and len(sample.response_ids) >= longest and not sample.succeeded:
            return False
        if not config.difficulty_mask:
            return True
        mean = sum(group.outcomes) / len(group.outcomes)
        return config.difficulty_low_threshold < mean < config.difficulty_high_threshold

    def estimate(self, batch: TokenBatch, groups: Sequence[SampleGroup]) -> AdvantageEstimate:
        """Compares rollouts: one that became several samples counts once, and they share its advantage."""
        config = self._rlvr
        rollouts, of_sample = rollouts_of(groups)
        first = torch.tensor([rollout.first for rollout in rollouts])
        scores, group_ids = batch.scores[first], torch.tensor([rollout.group for rollout in rollouts])
        domains = [groups[rollout.group].prompt.domain for rollout in rollouts]
        names = sorted(set(domains))
        domain_ids = torch.tensor([names.index(domain) for domain in domains])
        trained = torch.zeros(len(rollouts), dtype=torch.int64)
        trained.index_add_(0, of_sample, batch.sums_per_sample(batch.loss_mask.long()))
        rewards, estimates = torch.zeros(len(rollouts)), torch.zeros(len(rollouts))
        for number, domain in enumerate(names):
            rows = (domain_ids == number).nonzero().squeeze(1)
            running = self._running.setdefault(domain, RunningMoments())
            running.update(scores[rows])
            rewards[rows] = normalize_rewards(scores[rows], group_ids[rows], config.norm_mean_type, config.norm_std_type, running)
            if config.uses_critic:
                estimates[rows] = rewards[rows]
            elif config.uses_greedy_baseline:
                baselines = torch.tensor([_greedy_reward(groups[i]) for i in group_ids[rows].tolist()])
                estimates[rows] = remax(rewards[rows], baselines)
            else:
                estimates[rows] = sequence_advantages(rewards[rows], group_ids[rows], config.adv_estimator, trained[rows])
        estimates = clip(estimates, config.reward_clip)
        return AdvantageEstimate(rewards[of_sample], estimates[of_sample], populations=domain_ids[of_sample])

    def state(self) -> JsonObject:
        return super().state() | {"rewards": {name: moments.state() for name, moments in self._running.items()}}

    def restore(self, state: JsonMapping) -> None:
        super().restore(state)
        self._running = {name: RunningMoments(**moments) for name, moments in state["rewards"].items()}


def _kept(group: SampleGroup, sample: Sample, best: int | None) -> bool:
    """True if rejection sampling keeps the sample: it succeeds, or is among the best of its group; of equals the first."""
    if best is None:
        return sample.succeeded
    rewards = dict(zip([each.index for each in group.samples], group.rewards, strict=True))
    return sample.index in sorted(rewards, key=lambda index: -rewards[index])[:best]


class Rollout(NamedTuple):
    group: int
    first: int
    """Its first sample in the batch."""


def rollouts_of(groups: Sequence[SampleGroup]) -> tuple[list[Rollout], Tensor]:
    """Returns the rollouts of a batch, and [S] int64, the rollout of each sample."""
    found: dict[tuple[int, int], int] = {}
    rollouts: list[Rollout] = []
    of_sample: list[int] = []
    for i, group in enumerate(groups):
        for sample in group.samples:
            if (i, sample.index) not in found:
                found[i, sample.index] = len(rollouts)
                rollouts.append(Rollout(i, len(of_sample)))
            of_sample.append(found[i, sample.index])
    return rollouts, torch.tensor(of_sample)


def _greedy_reward(group: SampleGroup) -> float:
    if group.baseline is None or group.baseline.reward is None:
        raise ValueError(f"adv_estimator remax needs the reward of a greedy response; group {group.group_id} has none")
    return group.baseline.reward
