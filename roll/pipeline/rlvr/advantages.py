"""From the scores of a step to the advantages of its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from roll.algorithms.advantages import WHITENED, clip, sequence_advantages, whiten
from roll.algorithms.kl import KLController, approx_kl
from roll.algorithms.returns import discounted_returns, on_last_token
from roll.algorithms.reward_normalization import RunningMoments, normalize_rewards
from roll.configs.rlvr import RLVRConfig
from roll.data.sample import SampleGroup
from roll.data.token_batch import TokenBatch


class Advantages:
    """Called once a step, in order: what is carried from step to step (running reward moments, the KL coefficient) moves on, and
    is part of a checkpoint."""

    def __init__(self, config: RLVRConfig) -> None:
        self._config = config
        self._running: dict[str, RunningMoments] = {}
        self._kl = KLController(config.init_kl_coef, config.target_kl, config.kl_horizon)

    def __call__(self, batch: TokenBatch, groups: Sequence[SampleGroup]) -> tuple[TokenBatch, dict[str, float]]:
        """The batch with advantages, and metrics. Rewards are normalised and clipped, the estimator applied, each domain on its
        own, so that an easy domain does not shift a hard one; then token-level KL, discount, whitening, clipping.

        Without KL and discount a sample's advantage stands on all its trained tokens."""
        config = self._config
        rewards, per_sample = self._of_sequences(batch, groups)
        metrics = _spread("critic/rewards", rewards)
        if config.add_token_level_kl or config.whiten_rewards or config.gamma != 1:
            advantages, more = self._of_tokens(batch, per_sample)
            metrics |= more
        else:
            advantages = per_sample[batch.sample_ids] * batch.loss_mask
        if config.whiten_advantages or config.adv_estimator in WHITENED:
            advantages = whiten(advantages, batch.loss_mask)
        advantages = clip(advantages, config.advantage_clip)
        return batch.with_(advantages=advantages), metrics | _spread("critic/advantages", advantages[batch.loss_mask])

    def _of_sequences(self, batch: TokenBatch, groups: Sequence[SampleGroup]) -> tuple[Tensor, Tensor]:
        """[S] normalised rewards, and [S] advantages of whole samples."""
        config = self._config
        group_ids = torch.tensor([i for i, group in enumerate(groups) for _ in group.samples])
        domains = [group.prompt.domain for group in groups for _ in group.samples]
        trained = batch.sums_per_sample(batch.loss_mask.long())
        rewards, per_sample = torch.zeros(len(batch)), torch.zeros(len(batch))
        for domain in sorted(set(domains)):
            rows = torch.tensor([i for i, name in enumerate(domains) if name == domain])
            running = self._running.setdefault(domain, RunningMoments())
            running.update(batch.scores[rows])
            rewards[rows] = normalize_rewards(
                batch.scores[rows], group_ids[rows], config.norm_mean_type, config.norm_std_type, config.reward_clip, running
            )
            per_sample[rows] = sequence_advantages(rewards[rows], group_ids[rows], config.adv_estimator, trained[rows])
        return rewards, per_sample

    def _of_tokens(self, batch: TokenBatch, per_sample: Tensor) -> tuple[Tensor, dict[str, float]]:
        """[N] returns of token rewards: the sample's advantage on its last trained token, minus the KL penalty on each."""
        config, metrics = self._config, {}
        padded = batch.padded()
        mask = padded.loss_mask
        rewards = on_last_token(per_sample, mask)
        if config.add_token_level_kl:
            if padded.reference_logprobs is None:
                raise ValueError("add_token_level_kl needs the log-probs of the reference")
            # The policy that the samples, or at least the ratios of the loss, start from: no gradient flows through a reward.
            policy = padded.behaviour_logprobs if padded.proximal_logprobs is None else padded.proximal_logprobs
            known = mask & policy.isfinite() & padded.reference_logprobs.isfinite()
            kl = approx_kl(policy, padded.reference_logprobs, config.kl_penalty, known)
            rewards = clip(rewards - self._kl.coefficient * kl, config.reward_clip)
            trained = mask.sum(1)
            if bool(trained.any()):
                mean = float((kl.sum(1) / trained.clamp(min=1)).sum() / (trained > 0).sum())
                metrics = {"critic/kl": mean, "critic/kl_coef": self._kl.coefficient}
                self._kl.update(mean, len(batch))
        if config.whiten_rewards:
            rewards = whiten(rewards, mask, shift=False)
        return padded.flatten(discounted_returns(rewards, mask, config.gamma)), metrics

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {"rewards": {name: moments.state() for name, moments in self._running.items()}, "kl_coef": self._kl.coefficient}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from `state()`. A coefficient that does not adapt stays the configuration's."""
        self._running = {name: RunningMoments(**moments) for name, moments in state["rewards"].items()}
        if self._config.target_kl is not None:
            self._kl.coefficient = state["kl_coef"]


def _spread(name: str, values: Tensor) -> dict[str, float]:
    if values.numel() == 0:
        return {}
    return {f"{name}/mean": float(values.mean()), f"{name}/max": float(values.max()), f"{name}/min": float(values.min())}
