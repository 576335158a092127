"""Makes the tensors of a training step from rewarded groups. Pure."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from roll.core.data.kept_tokens import KeptSets, KeptTokens
from roll.core.data.microbatches import Forest
from roll.core.data.routes import batch_routes
from roll.core.data.sample import Sample, SampleGroup
from roll.core.data.seeding import derive_seed
from roll.core.data.token_batch import TokenBatch
from roll.core.workers.train_interface import BatchTotals

Keep = Callable[[SampleGroup, Sample], bool]
"""True if the tokens of a sample are trained."""


def token_batch(
    groups: Sequence[SampleGroup], temperature: float, keep: Keep | None = None, version: int | None = None
) -> TokenBatch:
    """Returns the samples of the groups, in order, without advantages. `loss_mask` is True on the policy's own tokens of those
    samples that `keep` keeps (None: all). `version`: the version in training; with it the batch has `fresh_from`."""
    samples = [sample for group in groups for sample in group.samples]
    lengths = [len(sample.prompt.input_ids) + len(sample.response_ids) for sample in samples]
    tokens = np.zeros(sum(lengths), np.int64)
    mask, behaviour = np.zeros(len(tokens), np.bool_), np.zeros(len(tokens), np.float32)
    stop = 0
    for group in groups:
        for sample in group.samples:
            start, begin = stop, stop + len(sample.prompt.input_ids)
            stop = begin + len(sample.response_ids)
            tokens[start:begin], tokens[begin:stop] = sample.prompt.input_ids, sample.response_ids
            if keep is None or keep(group, sample):
                mask[begin:stop] = True if sample.loss_mask is None else sample.loss_mask
                behaviour[begin:stop] = sample.behaviour_logprobs
    return TokenBatch(
        lengths=torch.tensor(lengths, dtype=torch.int64),
        scores=torch.tensor([reward for group in groups for reward in group.rewards], dtype=torch.float32),
        temperatures=torch.full((len(samples),), temperature),
        tokens=torch.from_numpy(tokens),
        loss_mask=torch.from_numpy(mask),
        behaviour_logprobs=torch.from_numpy(behaviour),
        advantages=torch.zeros(len(tokens)),
        fresh_from=None if version is None else _fresh_from(samples, version),
        rollout_tokens=_rollout_tokens(groups, np.split(mask, np.cumsum(lengths)[:-1])),
        kept=_kept_sets(samples) if any(sample.kept for sample in samples) else None,
        routes=batch_routes([(length, sample.routes) for length, sample in zip(lengths, samples, strict=True)]),
    )


def _kept_sets(samples: Sequence[Sample]) -> KeptSets:
    parts = [
        part
        for sample in samples
        for part in (KeptTokens.whole(len(sample.prompt.input_ids)), sample.kept or KeptTokens.whole(len(sample.response_ids)))
    ]
    return KeptSets.of(parts)


def _rollout_tokens(groups: Sequence[SampleGroup], masks: Sequence[np.ndarray]) -> Tensor:
    rollouts = [(group.group_id, sample.index) for group in groups for sample in group.samples]
    tokens = Counter[tuple[int, int]]()
    for rollout, mask in zip(rollouts, masks, strict=False):
        tokens[rollout] += int(mask.sum())
    return torch.tensor([tokens[rollout] for rollout in rollouts], dtype=torch.float32)


def _fresh_from(samples: Sequence[Sample], version: int) -> Tensor:
    offsets = itertools.accumulate((len(s.prompt.input_ids) + len(s.response_ids) for s in samples), initial=0)
    *starts, total = offsets
    fresh = torch.zeros(total, dtype=torch.int64)
    for sample, start in zip(samples, starts, strict=True):
        response = fresh[start + len(sample.prompt.input_ids) :]
        for span in sample.versions:
            if span.version == version:
                response[span.start : span.stop] = 1 + span.engine
    return fresh


def totals_of(batch: TokenBatch) -> BatchTotals:
    tokens_per_sample = batch.sums_per_sample(batch.loss_mask.long())
    rollouts = None
    if batch.rollout_tokens is not None:
        rollouts = float((tokens_per_sample / batch.rollout_tokens.double().clamp(min=1)).sum())
    return BatchTotals(int(tokens_per_sample.sum()), int((tokens_per_sample > 0).sum()), rollouts)


def optimiser_batches(batch: TokenBatch, count: int, epochs: int, seed: int) -> list[TokenBatch]:
    """Cuts the batch into `count` optimiser steps of nearly equal numbers of samples, `epochs` times; shuffled if there is more
    than one. `count` is fixed by the configuration: a batch with more or fewer samples than planned does not change the number of
    optimiser steps, nor any sample's weight in its step. After the first step no token is fresh any more."""
    count = min(count, max(len(batch), 1))
    stale = replace(batch, fresh_from=None)
    if count == 1:
        return [batch, *[stale] * (epochs - 1)]
    order = list(range(len(batch)))
    borders = [len(order) * i // count for i in range(count + 1)]
    batches: list[TokenBatch] = []
    for epoch in range(epochs):
        random.Random(derive_seed(seed, epoch)).shuffle(order)
        for start, stop in itertools.pairwise(borders):
            batches.append((stale if batches else batch).select(sorted(order[start:stop])))
    return batches


def shares(batch: TokenBatch, ranks: int) -> list[list[int]]:
    """Returns the samples of each data-parallel rank, ascending: the ranks' numbers of tokens are balanced, and samples with a
    common prefix stay together."""
    return [list(range(len(batch)))] if ranks == 1 else Forest.of(batch.rows).split(ranks)


def shards(batch: TokenBatch, ranks: int) -> list[TokenBatch]:
    """Divides the batch over data-parallel ranks, by `shares`."""
    return [batch] if ranks == 1 else [batch.select(indices) for indices in shares(batch, ranks)]


def gather(values: Sequence[Tensor], batch: TokenBatch, by_rank: Sequence[Sequence[int]]) -> Tensor:
    """Returns [N], the per-token results of the ranks' `shares` in the order of the batch."""
    out = torch.zeros(batch.num_tokens)
    offsets = batch.offsets.tolist()
    for indices, part in zip(by_rank, values, strict=True):
        position = 0
        for i in indices:
            length = offsets[i + 1] - offsets[i]
            out[offsets[i] : offsets[i + 1]] = part[position : position + length]
            position += length
    return out


def rollout_metrics(groups: Sequence[SampleGroup]) -> dict[str, float]:
    """Returns metrics of a step's rollouts; lengths are in tokens of the policy. `critic/score` is ROLL's name for rewards."""
    samples = [sample for group in groups for sample in group.samples]
    rewards = [sample.reward for sample in samples if sample.reward is not None and sample.begins_rollout]
    lengths = [sample.own_tokens for sample in samples]
    kept = [sample.kept.sizes for sample in samples if sample.kept is not None]
    by_domain: dict[str, list[float]] = {}
    for group in groups:
        domain = group.prompt.domain
        by_domain.setdefault(domain, []).extend(group.outcomes)
        for name, part in [item for sample in group.samples for item in sample.reward_parts.items()]:
            by_domain.setdefault(f"{domain}/{name}", []).append(part)
    statistics = {"mean": sum(rewards) / len(rewards), "max": max(rewards), "min": min(rewards)}
    return {
        **{f"{name}/{statistic}": value for name in ("rewards", "critic/score") for statistic, value in statistics.items()},
        **{f"rewards/{domain}/mean": sum(of_domain) / len(of_domain) for domain, of_domain in by_domain.items()},
        "tokens/response_length/mean": sum(lengths) / len(lengths),
        "tokens/response_length/max": max(lengths),
        "tokens/response_length/clip": sum(sample.finish_reason == "length" for sample in samples) / len(samples),
        **({"tokens/kept_set/mean": sum(map(sum, kept)) / max(1, sum(map(len, kept)))} if kept else {}),
    }
