"""The most probable tokens of a distribution, and their log-probs: from logits, from hidden states, or for a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from roll.core.data.kept_tokens import KeptSets
from roll.core.data.token_batch import TokenBatch
from roll.strategies.train.logprobs import head_parts, part_logits, wide_divisors

if TYPE_CHECKING:
    from roll.strategies.train.hf_train import HFTrainStrategy


@torch.no_grad()
def row_top(logits: Tensor, temperatures: Tensor, top: int, kept: KeptSets | None = None) -> tuple[Tensor, Tensor]:
    """[K, top] each: ids and log-probs of the most probable tokens, for logits [K, V] and temperatures [K]. Fewer than `top` are
    followed by log-probs of -inf."""
    if kept is not None:
        logits = logits.masked_fill(kept.cut(0, logits.shape[1]), -torch.inf)
    z = logits / wide_divisors(temperatures, logits)[:, None]
    best, ids = z.topk(min(top, z.shape[1]), 1)
    return _filled(ids, best - z.logsumexp(1, keepdim=True), top)


@torch.no_grad()
def head_top(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    temperatures: Tensor,
    top: int,
    kept: KeptSets | None = None,
    fp32: bool = False,
) -> tuple[Tensor, Tensor]:
    """`row_top` of logits = hidden·weightᵀ + bias, for hidden states [K, H]. `fp32`: as `head_logprobs`."""
    hidden = hidden.to(weight.dtype)
    divisor = wide_divisors(temperatures, weight)[:, None]
    totals, best, ids = list[Tensor](), hidden.new_zeros(len(hidden), 0, dtype=divisor.dtype), None
    for part in head_parts(weight.shape[0], len(hidden), hidden.device):
        z = part_logits(hidden, weight, bias, part, kept, fp32) / divisor
        totals.append(z.logsumexp(1))
        found, places = z.topk(min(top, z.shape[1]), 1)
        best = torch.cat([best, found], 1)
        ids = places + part.start if ids is None else torch.cat([ids, places + part.start], 1)
        best, chosen = best.topk(min(top, best.shape[1]), 1)
        ids = ids.gather(1, chosen)
    assert ids is not None, "a vocabulary is not empty"
    return _filled(ids, best - torch.stack(totals).logsumexp(0)[:, None], top)


def _filled(ids: Tensor, logprobs: Tensor, top: int) -> tuple[Tensor, Tensor]:
    lacking = top - ids.shape[1]
    return pad(ids, (0, lacking)), pad(logprobs.float(), (0, lacking), value=-torch.inf)


def batch_top(strategy: HFTrainStrategy, batch: TokenBatch, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `TrainWorker.teach`."""
    found: dict[int, list[Tensor]] = {}
    with torch.no_grad(), strategy._cores.computing():
        for part, micro, layout in strategy._microbatches(batch, strategy._spec.max_tokens_per_microbatch_infer):
            counts = part.padded.loss_mask.sum(1).tolist()[: len(part.indices)]
            said = strategy._scorer.top(strategy._callable, micro, layout, top)
            of_samples = [each[: sum(counts)].cpu().split(counts) for each in said] if counts else [()] * len(said)
            found |= {i: list(each) for i, each in zip(part.indices, zip(*of_samples, strict=True), strict=True)}
    strategy._after_inference()
    empty = [torch.zeros(0), torch.zeros(0, top, dtype=torch.int64), torch.zeros(0, top)]
    logprobs, ids, most = (torch.cat([empty[n], *(found[i][n] for i in range(len(batch)))]) for n in range(3))
    return logprobs.float(), ids.int(), most.float()
