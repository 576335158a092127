"""New weights from the trainer to the engines: published every n steps, taken by each engine when it is its turn.

Publishing and taking are two loops with the store between them: the trainer never waits for an engine that puts a version off,
nor an engine for the trainer. Only a validation and the end of the run need a version on all engines, and wait for it.

All numbers of versions, and who owns them:

| version | owner | is |
|---|---|---|
| trained | `RunRecord.step` | steps done: the version that the trainer's weights are |
| published | `Admission.newest` | the newest that can be pulled; explorers of other processes learn it from the database |
| pulled | `WeightPulls.newest` | the newest that these engines may load; published, as far as this process has heard |
| awaited | `WeightPulls._awaited` | a validation, or the end of the run, needs it on all engines |
| staged | `WeightSending.staged` | of each engine: received, not active yet |
| served, by engine | `Fleet.versions` | what it samples with |
| served | `Fleet.version`, then `Admission.version` | the oldest of these; admission counts from it |
| held | `EngineUpdates._held` | whether a validation of the served version keeps engines from flipping |
| proximal | `PolicyCopy.version_for` | what recomputes log-probs, where a role of its own does |
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from roll.core.data.sample import SampleGroup
from roll.core.distributed.clock import monotonic
from roll.core.engines.engine_fleet import EngineFleet
from roll.core.engines.fleet import WeightPulls
from roll.core.engines.policy_copy import PolicyCopy
from roll.core.groups.groups import Groups
from roll.core.groups.schedule import StepSchedule
from roll.core.record.trace import Trace
from roll.core.weights.store import Buckets, WeightStore
from roll.core.weights.transport import NewWeights

AHEAD = "as it is made"


@dataclass(slots=True)
class UpdateStats:
    """Costs of weight updates."""

    published: int = 0
    count: int = 0
    """Number of loads, each by all the engines that were due."""
    bytes: int = 0
    pauses_s: list[float] = field(default_factory=list)
    send_s: float = 0.0
    """Seconds spent sending buckets."""

    def plus(self, other: UpdateStats) -> UpdateStats:
        pauses, send_s = [*self.pauses_s, *other.pauses_s], self.send_s + other.send_s
        return UpdateStats(self.published + other.published, self.count + other.count, self.bytes + other.bytes, pauses, send_s)

    def summary(self) -> dict[str, float]:
        pauses = self.pauses_s or [0.0]
        return {
            "published": self.published,
            "count": self.count,
            "bytes": self.bytes,
            "send_s": self.send_s,
            "pause_s_mean": sum(pauses) / len(pauses),
            "pause_s_max": max(pauses),
        }


class EngineUpdates:
    """Brings the newest version to the engines that are due, while they generate and the trainer trains on, then has each flip at
    a token border. Where engines and trainer take turns on a device, all of that happens in the engines' turn."""

    def __init__(self, engines: EngineFleet, groups: Groups, schedule: StepSchedule, trace: Trace) -> None:
        self._engines = engines
        self._groups = groups
        self._schedule = schedule
        self._trace = trace
        self._pulls = WeightPulls(engines.fleet, schedule.pull_every)
        self._served = engines.fleet.version
        """The oldest version that an engine serves, as the groups know it."""
        self._held = schedule.validates(self._served)
        """True while a validation of the present version is due, or under way: no engine flips."""
        self._exchange = asyncio.Lock()
        """Held from the first bucket of a version to the flip, or to the last bucket that is sent ahead: an engine keeps one
        version aside."""
        self.stats = UpdateStats()

    def group_ended(self, group: SampleGroup) -> None:
        """Called when the group was rolled out, whether it is kept or not."""
        self._pulls.group_ended({span.engine for sample in group.samples for span in sample.versions})
        self._groups.changes.notify()

    def release(self) -> None:
        """Called when the validation has its samples: engines may flip again."""
        self._held = False
        self._groups.changes.notify()

    async def run(self) -> None:
        """Runs as long as the run does."""
        while True:
            await self._report_served()
            await self._groups.until(lambda: self._due() or self._engines.fleet.version > self._served)
            if engines := self._due():
                await self._load(engines)

    def _due(self) -> list[int]:
        return self._pulls.due(self._groups.wait_for_weights)

    async def _load(self, engines: list[int]) -> None:
        if self._engines.shares_devices:  # a validation needs the engines' turn to end, which would wait for it below
            await self._groups.until(lambda: not self._held)
        async with self._engines.turn(), self._exchange:
            await self._load_in_turn(engines)

    async def _load_in_turn(self, engines: list[int]) -> None:
        version = self._pulls.begin()
        with self._sending(f"{version}", engines):
            await self._engines.send(version, engines)
        await self._groups.until(lambda: not self._held)
        with self._trace.during("weights", f"flip to version {version}", engines=engines):
            pauses = await self._engines.flip(version, engines)
        self.stats.count += 1
        self.stats.bytes += self._engines.store.manifest(version).nbytes * len(pauses)
        self.stats.pauses_s += pauses
        self._pulls.end(engines)
        await self._engines.store.retain(self._needed)

    @contextmanager
    def _sending(self, version: str, engines: list[int]) -> Iterator[None]:
        begun = monotonic()
        with self._trace.during("weights", f"send version {version}", engines=engines):
            yield
        self.stats.send_s += monotonic() - begun

    @property
    def _needed(self) -> frozenset[int]:
        """Returns the versions that the store has to keep."""
        return self._pulls.needed

    async def _report_served(self) -> None:
        version = self._engines.fleet.version
        if version > self._served:
            self._served = version
            self._held = self._held or self._schedule.validates(version)
            await self._groups.set_served(version)


class WeightUpdates(EngineUpdates):
    """The trainer is in the same driver: it publishes here."""

    def __init__(
        self,
        engines: EngineFleet,
        store: WeightStore,
        groups: Groups,
        schedule: StepSchedule,
        trace: Trace,
        copy: PolicyCopy | None = None,
    ) -> None:
        """`copy`: a copy of the policy that takes versions besides the engines."""
        super().__init__(engines, groups, schedule, trace)
        self._store = store
        self._copy = copy
        self._coming: Buckets | None = None
        """The newest version whose gathering has begun, until it is looked at."""
        self._begun = asyncio.Event()

    def begin(self, coming: Buckets) -> None:
        """Called when the trainer begins to make a version."""
        self._coming = coming
        self._begun.set()

    async def send_ahead(self) -> None:
        """Runs as long as the run does. Sends buckets of a version, while it is made, to engines that will take it at once, so
        that little is left to send when it is published. Later steps handle the version as if nothing had been sent."""
        while True:
            await self._begun.wait()
            self._begun.clear()
            await self._send_coming()

    async def _send_coming(self) -> None:
        async with self._exchange:
            coming, self._coming = self._coming, None
            if coming is not None and (engines := self._ahead(coming.version)):
                with self._sending(f"{coming.version} {AHEAD}", engines):
                    await self._engines.send_ahead(coming, engines)

    def _ahead(self, version: int) -> list[int]:
        """None where engines may put the version off; where they share devices with the trainer, and sleep while it gathers; and
        with a broadcast, which needs all that is to be sent."""
        together = self._engines.shares_devices or self._engines.broadcast is not None
        return [] if together or not self._schedule.awaits(version) else self._pulls.ahead(version)

    async def publish(self, weights: NewWeights) -> int | None:
        """Returns the version when all engines serve it, or immediately None if no caller has to wait for that."""
        version = weights.manifest.version
        awaited = self._schedule.awaits(version)
        with self._trace.during("publish", f"version {version}"):
            await self._store.publish(weights.manifest, weights.buckets)
        if self._copy is not None:
            self._copy.publish(version)
        self._pulls.publish(version, awaited)
        self.stats.published += 1
        if awaited:
            self._groups.changes.notify()
        else:
            await self._groups.set_published(version)
        await self._store.retain(self._needed)
        if not awaited:
            return None
        await self._groups.until(lambda: self._served >= version, "publish", f"all engines serve version {version}")
        return version

    @property
    def _needed(self) -> frozenset[int]:
        return self._pulls.needed | (self._copy.needed if self._copy is not None else frozenset())
