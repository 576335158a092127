"""On-policy distillation: the policy learns, on tokens that it sampled itself, what a teacher would rather have sampled.

With tokens sampled from the policy π, log π − log p_teacher is an unbiased estimate of the reverse divergence KL(π ‖ teacher) of
each token's distribution, and the policy gradient with −(log π − log p_teacher) as the token's advantage is that of the mean of
these divergences along the policy's own texts, later tokens left out (a discount of 0).

Or the divergence itself is a loss, of whole distributions: the generalised Jensen–Shannon divergence of GKD (arXiv 2306.13649)
and of TRL's DistillationTrainer, whose ends are the two KL divergences. A distribution is known by the teacher's k most probable
tokens and one bucket with the rest of the probability, as in TRL's ServerDistillationTrainer: the divergence of these k + 1 is at
most that of the vocabulary, and 0 where that is 0.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from roll.core.data.token_batch import TokenBatch


def with_teachers(batch: TokenBatch, advantages: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Returns [N] advantages + weight·(log p_teacher − log π) on the trained tokens that have a teacher, and metrics. π is the
    policy that sampled, or the proximal one if its log-probs were recomputed. A log-prob that is not finite teaches nothing.
    Advantages stay as they are if the loss has the divergence."""
    assert batch.teacher_logprobs is not None and batch.teacher_weights is not None
    policy = batch.behaviour_logprobs if batch.proximal_logprobs is None else batch.proximal_logprobs
    known = batch.loss_mask & policy.isfinite() & batch.teacher_logprobs.isfinite()
    difference = torch.where(known, batch.teacher_logprobs - policy, 0.0)
    weights = batch.teacher_weights[batch.sample_ids]
    tokens, trained = int(known.sum()), int(batch.loss_mask.sum())
    metrics = {"teacher/token_share": tokens / trained} if trained else {}
    if tokens:
        metrics["teacher/kl"] = -float(difference.sum()) / tokens
        metrics["teacher/weight"] = float(weights[known].mean())
    # With the most probable tokens of the teachers the loss has their divergence instead.
    return advantages + weights * difference if batch.teacher_top is None else advantages, metrics


REST = 1e-7
"""The probability of the rest is at least this, a rounding in float32."""


def divergence(policy: Tensor, teacher: Tensor, beta: float) -> Tensor:
    """Returns [K] β·KL(p ‖ m) + (1 − β)·KL(π ‖ m) with m = β·p + (1 − β)·π; at β = 0 its limit per β, KL(p ‖ π), at 1 the one per
    1 − β, KL(π ‖ p). `policy`, `teacher`: [K, k] log π and log p of the teacher's most probable tokens; -inf of the teacher: no
    token. 0 in a row without any."""
    known = teacher > -torch.inf
    policy, teacher = _with_rest(policy, known), _with_rest(teacher, known)
    if beta in (0.0, 1.0):
        one, other = (teacher, policy) if beta == 0 else (policy, teacher)
        found = (one.exp() * (one - other)).sum(-1)
    else:
        mixture = torch.logaddexp(policy + math.log1p(-beta), teacher + math.log(beta))
        parts = beta * teacher.exp() * (teacher - mixture) + (1 - beta) * policy.exp() * (policy - mixture)
        found = parts.sum(-1)
    return torch.where(known.any(-1), found, 0.0)


def _with_rest(logprobs: Tensor, known: Tensor) -> Tensor:
    """Returns [K, k + 1] log-probs. Those that are not known are of a probability of 0."""
    logprobs = torch.where(known, logprobs, -1e4)
    rest = torch.log(-torch.expm1(logprobs.logsumexp(-1, keepdim=True).clamp(max=-REST)))
    return torch.cat([logprobs, rest], -1)
