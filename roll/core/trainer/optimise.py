"""The optimiser steps of a pipeline step, on the workers of a role: policy or critic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from roll.core.algorithms.loss import LossSpec
from roll.core.algorithms.value_loss import ValueLossSpec
from roll.core.data.token_batch import TokenBatch
from roll.core.distributed.cluster import Cluster
from roll.core.trainer.batch import shards, totals_of


async def optimise(cluster: Cluster, batches: Sequence[TokenBatch], loss: LossSpec | ValueLossSpec) -> dict[str, float]:
    """Takes an optimiser step for each batch that has a token to train. Returns their metrics over the steps."""
    batches = [batch for batch in batches if totals_of(batch).tokens > 0]
    taken = {f"{cluster.role}/optimiser_steps": float(len(batches))}
    if not batches:
        return taken
    totals = [totals_of(batch) for batch in batches]
    by_batch = [await _divided(batch, cluster.num_shards) for batch in batches]
    by_shard = [list(of_shard) for of_shard in zip(*by_batch, strict=True)]
    metrics: list[dict[str, float]] = (await cluster.scatter("train", by_shard, loss, totals))[0]
    # A metric without a value in some steps is the mean over the other steps.
    names = dict.fromkeys(name for of_step in metrics for name in of_step)
    values_of = {name: [of_step[name] for of_step in metrics if name in of_step] for name in names}
    return {name: _over_steps(name, values) for name, values in values_of.items()} | taken


async def add_gradients(cluster: Cluster, part: TokenBatch, loss: LossSpec) -> None:
    """Adds the gradients of a part of an optimiser step's batch, if it has a token to train."""
    if totals_of(part).tokens:
        await cluster.scatter("add_gradients", await _divided(part, cluster.num_shards), loss)


async def step_on_gradients(cluster: Cluster, batch: TokenBatch, loss: LossSpec) -> dict[str, float]:
    """Takes the optimiser step on the gradients of all parts of the batch. Returns the metrics of `optimise`."""
    totals = totals_of(batch)
    metrics: dict[str, float] = (await cluster.call_all("step_on_gradients", loss, totals))[0] if totals.tokens else {}
    return metrics | {f"{cluster.role}/optimiser_steps": float(bool(totals.tokens))}


async def _divided(batch: TokenBatch, ranks: int) -> list[TokenBatch]:
    """Divides outside the event loop, because it compares all tokens."""
    return [batch] if ranks == 1 else await asyncio.to_thread(shards, batch, ranks)


def _over_steps(name: str, values: Sequence[float]) -> float:
    """Returns the metric over all steps: the maximum of maxima, the last of running counts, the mean of everything else."""
    if name.endswith("_max"):
        return max(values)
    return values[-1] if name.endswith("/skipped_steps") else sum(values) / len(values)
