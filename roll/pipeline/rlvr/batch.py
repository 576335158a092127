"""From rewarded groups to the tensors of a training step. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from roll.configs.rlvr import RLVRConfig
from roll.data.microbatch import split_across_ranks
from roll.data.sample import Sample, SampleGroup
from roll.data.seeding import derive_seed
from roll.data.token_batch import TokenBatch
from roll.strategies.train.interface import BatchTotals

T = TypeVar("T")


def token_batch(groups: Sequence[SampleGroup], temperature: float, config: RLVRConfig) -> TokenBatch:
    """The samples of the groups, in order, without advantages. `loss_mask` is True on response tokens, except those of samples
    that `max_len_mask` (cut off at the length limit) or `difficulty_mask` (group too easy or too hard) leave out."""
    samples = [sample for group in groups for sample in group.samples]
    kept = [
        _in_difficulty_range(group, config) and not (config.max_len_mask and sample.finish_reason == "length")
        for group in groups
        for sample in group.samples
    ]
    prompts = [sample.prompt.input_ids for sample in samples]
    responses = [sample.response_ids for sample in samples]
    mask = [[False] * len(p) + [keep] * len(r) for p, r, keep in zip(prompts, responses, kept, strict=True)]
    behaviour = [
        [0.0] * len(p) + (s.behaviour_logprobs if keep else [0.0] * len(r))
        for s, p, r, keep in zip(samples, prompts, responses, kept, strict=True)
    ]
    tokens = [p + r for p, r in zip(prompts, responses, strict=True)]
    return TokenBatch(
        lengths=torch.tensor([len(row) for row in tokens]),
        scores=torch.tensor([reward for group in groups for reward in group.rewards], dtype=torch.float32),
        temperatures=torch.full((len(samples),), temperature),
        tokens=torch.tensor(_flat(tokens)),
        loss_mask=torch.tensor(_flat(mask), dtype=torch.bool),
        behaviour_logprobs=torch.tensor(_flat(behaviour), dtype=torch.float32),
        advantages=torch.zeros(sum(map(len, tokens))),
    )


def _in_difficulty_range(group: SampleGroup, config: RLVRConfig) -> bool:
    if not config.difficulty_mask:
        return True
    mean = sum(group.rewards) / len(group.samples)
    return config.difficulty_low_threshold < mean < config.difficulty_high_threshold


def _flat(rows: Sequence[Sequence[T]]) -> list[T]:
    return [value for row in rows for value in row]


def totals_of(batch: TokenBatch) -> BatchTotals:
    tokens_per_sample = batch.sums_per_sample(batch.loss_mask.long())
    return BatchTotals(tokens=int(tokens_per_sample.sum()), sequences=int((tokens_per_sample > 0).sum()))


def optimiser_batches(batch: TokenBatch, batch_size: int, epochs: int, seed: int) -> list[TokenBatch]:
    """The batch cut into optimiser steps of `batch_size` samples, `epochs` times; shuffled if there is more than one."""
    order = list(range(len(batch)))
    if len(batch) <= batch_size:
        return [batch] * epochs
    batches = []
    for epoch in range(epochs):
        random.Random(derive_seed(seed, epoch)).shuffle(order)
        batches += [batch.select(sorted(order[i : i + batch_size])) for i in range(0, len(order), batch_size)]
    return batches


def shards(batch: TokenBatch, ranks: int) -> list[TokenBatch]:
    """The batch divided over data-parallel ranks, tokens balanced."""
    if ranks == 1:
        return [batch]
    return [batch.select(indices) for indices in split_across_ranks(batch.lengths.tolist(), ranks)]


def gather(values: Sequence[Tensor], batch: TokenBatch, ranks: int) -> Tensor:
    """[N], per-token results of the ranks' `shards` put back into the order of the batch."""
    if ranks == 1:
        return values[0]
    out = torch.zeros(batch.num_tokens)
    offsets = batch.offsets.tolist()
    for indices, part in zip(split_across_ranks(batch.lengths.tolist(), ranks), values, strict=True):
        position = 0
        for i in indices:
            length = offsets[i + 1] - offsets[i]
            out[offsets[i] : offsets[i + 1]] = part[position : position + length]
            position += length
    return out


def reward_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """What the rollouts of a step were like."""
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    lengths = [len(sample.response_ids) for sample in samples]
    return {
        "critic/score/mean": sum(rewards) / len(rewards),
        "critic/score/max": max(rewards),
        "critic/score/min": min(rewards),
        "tokens/response_length/mean": sum(lengths) / len(lengths),
        "tokens/response_length/max": max(lengths),
        "tokens/response_length/clip": sum(sample.finish_reason == "length" for sample in samples) / len(samples),
    }
