"""This rank's micro-batches of a step, equally many on every rank so that their collectives match."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import NamedTuple

import torch

from roll.data.token_batch import PER_SAMPLE, Padded, TokenBatch


class RankMicrobatch(NamedTuple):
    indices: list[int]
    """Samples of the rank's batch; none in one that only keeps step with the other ranks."""
    padded: Padded
    last: bool


def rank_microbatches(batch: TokenBatch, plan: Sequence[list[int]], all_max: Callable[[int], int]) -> Iterator[RankMicrobatch]:
    """`plan`: the samples of each micro-batch. `all_max`: a collective, the largest of the ranks' values."""
    count = all_max(max(1, len(plan)))
    for position in range(count):
        indices = plan[position] if position < len(plan) else []
        padded = batch.select(indices).padded() if indices else _without_samples(batch)
        yield RankMicrobatch(indices, padded, position == count - 1)


def _without_samples(batch: TokenBatch) -> Padded:
    """A micro-batch of one masked token, with the fields that `batch` has: it adds 0 to the loss, the gradient and all
    metrics."""
    values = {}
    for field in fields(batch):
        value = getattr(batch, field.name)
        if value is not None:
            value = value.new_zeros(1 if field.name in PER_SAMPLE else (1, 1))
        values[field.name] = value
    values["lengths"] = batch.lengths.new_ones(1)
    return Padded(attention_mask=torch.ones(1, 1, dtype=torch.bool), **values)
