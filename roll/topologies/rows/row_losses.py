"""Weights of rows' tokens in the loss −A·ℓ: 1 in supervised fine-tuning, less the weight of the divergence from a teacher; in a
pair, from the derivative of its loss.

The loss of a pair is a function of the log-probs of both answers. `log_prob` computes them before the step, with the step's own
weights, so the derivative for each token is known when it is trained, and is its weight: the gradient is that of the loss of the
pair, however micro-batches and ranks divide the pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from roll.core.algorithms.policy_loss import LossInputs, policy_loss
from roll.core.configs.losses import PolicyLossArgs
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.rows import PairLossConfig
from roll.core.data.sample import SampleGroup
from roll.core.data.token_batch import TokenBatch
from roll.core.trainer.advantages import AdvantageEstimate, Advantages


@policy_loss(anchor="none")
def likelihood(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """Weighted log-likelihood: −A·ℓ, whoever wrote the tokens; with A = 1 their cross-entropy."""
    return -inputs.advantages * inputs.logprobs, {}


VARIANT = f"{likelihood.__module__}.{likelihood.__qualname__}"


class RowWeights(Advantages):
    def rollouts(self, groups: Sequence[SampleGroup]) -> dict[str, float]:
        lengths = [sample.own_tokens for group in groups for sample in group.samples]
        return {"tokens/response_length/mean": sum(lengths) / len(lengths), "tokens/response_length/max": float(max(lengths))}

    def estimate(self, batch: TokenBatch, groups: Sequence[SampleGroup]) -> AdvantageEstimate:
        return AdvantageEstimate(batch.scores, torch.ones(batch.num_tokens), of_tokens=True)

    def __call__(self, batch: TokenBatch, groups: Sequence[SampleGroup]) -> tuple[TokenBatch, dict[str, float]]:
        weights, metrics = self.estimate(batch, groups).advantages * batch.loss_mask, dict[str, float]()
        if batch.teacher_weights is not None and batch.teacher_logprobs is not None:
            shares, taught = batch.teacher_weights[batch.sample_ids], batch.loss_mask & batch.teacher_logprobs.isfinite()
            weights = (1 - shares) * weights
            metrics["teacher/token_share"] = float(taught.sum() / batch.loss_mask.sum())
            metrics |= {"teacher/weight": float(shares[taught].mean())} if taught.any() else {}
        return batch.with_(advantages=weights, proximal_logprobs=None, reference_logprobs=None), metrics

    def figures(self, batch: TokenBatch, log_probs: Tensor) -> dict[str, float]:
        """Returns the loss of a set, and its other figures."""
        return {"loss": -float((log_probs.double() * batch.loss_mask).sum() / batch.loss_mask.sum())}


class PairWeights(RowWeights):
    """Samples are pairs: a better answer and a worse one, in turn."""

    def __init__(self, config: PPOConfig, keys: PairLossConfig) -> None:
        super().__init__(config)
        self._keys = keys

    def estimate(self, batch: TokenBatch, groups: Sequence[SampleGroup]) -> AdvantageEstimate:
        assert batch.proximal_logprobs is not None, "derived: the log-probs of rows that are pairs are always computed"
        log_probs = batch.proximal_logprobs.double().requires_grad_()
        strengths = self._strengths(batch, log_probs)
        (gradient,) = torch.autograd.grad(pair_losses(strengths, self._keys).mean(), log_probs)
        weights = -gradient * batch.loss_mask.sum()  # the loss is the mean over all trained tokens
        return AdvantageEstimate(self._keys.beta * strengths.detach().float(), weights.float(), of_tokens=True)

    def __call__(self, batch: TokenBatch, groups: Sequence[SampleGroup]) -> tuple[TokenBatch, dict[str, float]]:
        weighed, metrics = super().__call__(batch, groups)
        assert batch.proximal_logprobs is not None
        figures = {f"pairs/{name}": value for name, value in self.figures(batch, batch.proximal_logprobs).items()}
        return weighed, metrics | figures

    def figures(self, batch: TokenBatch, log_probs: Tensor) -> dict[str, float]:
        strengths = self._strengths(batch, log_probs.double())
        better, worse = strengths[0::2], strengths[1::2]
        return {
            "loss": float(pair_losses(strengths, self._keys).mean()),
            "accuracy": float((better > worse).double().mean()),
            "margin": self._keys.beta * float((better - worse).mean()),
        }

    def _strengths(self, batch: TokenBatch, log_probs: Tensor) -> Tensor:
        """Returns [S]: how much likelier the policy makes each answer than the reference does."""
        mask = batch.loss_mask
        ratios = torch.where(mask, log_probs, 0)
        if self._keys.loss != "simpo":
            assert batch.reference_logprobs is not None, "uses_reference"
            ratios = ratios - torch.where(mask, batch.reference_logprobs.double(), 0)
        sums = batch.sums_per_sample(ratios)
        return sums if self._keys.loss == "sigmoid" else sums / batch.sums_per_sample(mask.long())


def pair_losses(strengths: Tensor, keys: PairLossConfig) -> Tensor:
    """Returns [S/2] the loss of each pair. `strengths`: [S] of the better and the worse answer of each, in turn."""
    h = strengths[0::2] - strengths[1::2]
    if keys.loss == "ipo":
        return (h - 1 / (2 * keys.beta)).square()
    logits = keys.beta * h - (keys.margin if keys.loss == "simpo" else 0)
    return -(1 - keys.label_smoothing) * logsigmoid(logits) - keys.label_smoothing * logsigmoid(-logits)
