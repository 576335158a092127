"""The critic's part of a step: values before the advantages, its own optimiser steps after them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from roll.algorithms.value_loss import ValueLossSpec
from roll.data.token_batch import TokenBatch
from roll.distributed.cluster import Cluster
from roll.pipeline.optimise import optimise
from roll.pipeline.stage import Stage
from roll.pipeline.trainer_stages import PerToken, TrainItem


class ValueStage(Stage[TrainItem, TrainItem]):
    """The values of the states that the tokens were taken in."""

    name = "value"
    role = "critic"

    def __init__(self, values: PerToken) -> None:
        super().__init__()
        self._values = values

    async def process(self, item: TrainItem) -> TrainItem:
        values = await self._values(item.batch)
        item.batch = item.batch.with_(values=values)
        return item


class CriticStage(Stage[TrainItem, TrainItem]):
    """The critic's optimiser steps. If a checkpoint of the step will be made, the critic's part of it is written now: later
    another role may have its devices."""

    name = "critic"
    role = "critic"

    def __init__(
        self,
        cluster: Cluster,
        loss: ValueLossSpec,
        batches: Callable[[TokenBatch, int], list[TokenBatch]],
        save: Callable[[int], Awaitable[None]],
    ) -> None:
        """`save` is told the number of steps done with this one."""
        super().__init__()
        self._cluster = cluster
        self._loss = loss
        self._batches = batches
        self._save = save

    async def process(self, item: TrainItem) -> TrainItem:
        metrics = await optimise(self._cluster, self._batches(item.batch, item.step), self._loss)
        item.metrics |= metrics
        await self._save(item.step + 1)
        return item
