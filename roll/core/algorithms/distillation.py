"""On-policy distillation: the policy learns, on tokens that it sampled itself, what a teacher would rather have sampled.

With tokens sampled from the policy π, log π − log p_teacher is an unbiased estimate of the reverse divergence KL(π ‖ teacher) of
each token's distribution, and the policy gradient with −(log π − log p_teacher) as the token's advantage is that of the mean of
these divergences along the policy's own texts, later tokens left out (a discount of 0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from roll.core.data.token_batch import TokenBatch


def with_teachers(batch: TokenBatch, advantages: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Returns [N] advantages + weight·(log p_teacher − log π) on the trained tokens that have a teacher, and metrics. π is the
    policy that sampled, or the proximal one if its log-probs were recomputed. A log-prob that is not finite teaches nothing."""
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
    return advantages + weights * difference, metrics
