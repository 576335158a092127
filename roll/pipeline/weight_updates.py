"""New weights from the trainer to the engines: published every n steps, taken by each engine when it is its turn.

Publishing and taking are two loops with the store between them: the trainer never waits for an engine that puts a version off,
nor an engine for the trainer. Only who needs a version on all engines (a validation, the end of the run) waits for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from roll.data.sample import SampleGroup
from roll.pipeline.engine_fleet import EngineFleet
from roll.pipeline.stage import Stage
from roll.pipeline.trainer_stages import NewWeights
from roll.rollout.admission import Admission
from roll.rollout.pipeline_depth import PipelineDepth
from roll.rollout.weight_pulls import WeightPulls


@dataclass(slots=True)
class UpdateStats:
    """What weight updates cost."""

    published: int = 0
    count: int = 0
    """Loads, each by all the engines that were due."""
    bytes: int = 0
    pauses_s: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        pauses = self.pauses_s or [0.0]
        return {
            "published": self.published,
            "count": self.count,
            "bytes": self.bytes,
            "pause_s_mean": sum(pauses) / len(pauses),
            "pause_s_max": max(pauses),
        }


class WeightUpdates:
    """Sends the newest version to the engines that are due, while they generate and the trainer trains on, then has each flip at
    a token border. `look` must be called when that may have changed."""

    def __init__(
        self,
        engines: EngineFleet,
        pull_interval: int,
        admission: Admission,
        depth: PipelineDepth,
        served: Callable[[int], None],
        engines_free: Callable[[], Awaitable[None]],
    ) -> None:
        """`served` is told the oldest version that an engine serves, whenever a newer one is that. `engines_free` is awaited
        between sending and flipping: a running evaluation of the present version holds it."""
        self._engines = engines
        self._pulls = WeightPulls(engines.fleet, pull_interval)
        self._admission = admission
        self._depth = depth
        self._served = served
        self._engines_free = engines_free
        self._told = engines.fleet.version
        self._may_be_due = asyncio.Event()
        self._progress = asyncio.Event()
        self.stats = UpdateStats()

    async def publish(self, weights: NewWeights, awaited: bool) -> None:
        """`awaited`: the engines put it off no longer, and this returns when all of them serve it."""
        version = weights.manifest.version
        await self._engines.store.publish(weights.manifest, weights.buckets)
        self._pulls.publish(version, awaited)
        self.stats.published += 1
        self.look()
        if not awaited:
            self._admission.offer(version)
        await self._engines.store.keep(self._pulls.needed)
        while awaited and self._told < version:
            self._progress.clear()
            await self._progress.wait()

    def group_ended(self, group: SampleGroup) -> None:
        self._pulls.group_ended({span.engine for sample in group.samples for span in sample.versions})
        self.look()

    def look(self) -> None:
        self._may_be_due.set()

    async def run(self) -> None:
        """Runs as long as the run does."""
        while True:
            self._may_be_due.clear()
            self._tell()
            starving = self._admission.waits_for_weights(self._depth.depth)
            if engines := self._pulls.due(starving):
                await self._load(engines)
            else:
                await self._may_be_due.wait()

    async def _load(self, engines: list[int]) -> None:
        version = self._pulls.begin()
        await self._engines.send(version, engines)
        await self._engines_free()
        pauses = await self._engines.flip(version, engines)
        self.stats.count += 1
        self.stats.bytes += self._engines.store.manifest(version).nbytes * len(pauses)
        self.stats.pauses_s += pauses
        self._pulls.end(engines)
        await self._engines.store.keep(self._pulls.needed)

    def _tell(self) -> None:
        if self._engines.fleet.version > self._told:
            self._told = self._engines.fleet.version
            self._served(self._told)
            self._progress.set()


class ParameterUpdateStage(Stage[NewWeights, int]):
    """Publishes new weights. Hands on the versions that all engines serve."""

    name = "parameter_update"

    def __init__(self, updates: WeightUpdates, awaited: Callable[[int], bool]) -> None:
        """`awaited`: whether a version has to be served by all engines before the next is published."""
        super().__init__()
        self._updates = updates
        self._awaited = awaited

    async def process(self, item: NewWeights) -> int | None:
        version = item.manifest.version
        awaited = self._awaited(version)
        await self._updates.publish(item, awaited)
        return version if awaited else None
