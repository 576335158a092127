"""Verification of drafted tokens in vLLM's worker, with the log-probs of the policy's sampler, and on CPUs with its sampling
parameters.

There vLLM 0.32 spreads temperature, top_k and top_p over a request's drafts by a kernel of whole numbers, whose result it leaves
behind: tokens are drawn with whatever lay in memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p


def verify_with(sampler: Any, runner: Any) -> None:
    if (verifier := getattr(runner, "rejection_sampler", None)) is not None:
        verifier.sampler = sampler
        if runner.device.type == "cpu":
            rejection_sampler.apply_sampling_constraints = constrained


def constrained(logits: Tensor, ends: Tensor, sampling: Any) -> Tensor:
    """Logits [drafts, vocabulary] of the distributions that are sampled. `ends` [requests]: where each one's drafts end.
    `sampling`: vLLM's metadata."""
    if sampling.all_greedy or not len(logits):
        return logits
    counts = ends.diff(prepend=ends.new_zeros(1))
    temperature, top_k, top_p = (
        None if each is None else each.repeat_interleave(counts)
        for each in (sampling.temperature, sampling.top_k, sampling.top_p)
    )
    assert temperature is not None  # unless all are greedy
    logits.div_(torch.where(temperature == rejection_sampler.GREEDY_TEMPERATURE, 1.0, temperature)[:, None])
    left: Tensor = apply_top_k_top_p(logits, top_k, top_p)
    return left
