"""The way of the weights in a virtual run: the real decisions of when to publish and when engines load, with durations instead of
bytes. Engines may die; the store forgets what is not needed, and remembers who asks for what it forgot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from roll.core.engines.fleet import EngineState, Fleet, WeightPulls
from roll.core.groups.admission import Admission
from roll.core.groups.pipeline_depth import PipelineDepth
from roll.core.groups.schedule import StepSchedule

Event = tuple[float, str, int]
"""(delay, kind, value)."""


@dataclass
class VirtualWeights:
    admission: Admission
    depth: PipelineDepth
    push: int = 1
    pull: int = 0
    engines: int = 1
    load_s: Callable[[int], float] = lambda _: 0.0
    awaited: Callable[[int], bool] = lambda _: False
    """Versions that all engines must serve before the next is published."""
    dies: Callable[[int], bool] = lambda _: False
    """Whether the engine of a group dies when the group ends."""
    published: list[int] = field(default_factory=list)
    loads: list[tuple[int, int]] = field(default_factory=list)
    """(engine, version), in order; not those of restarts."""
    most_stored: int = 1
    spread: int = 0
    """Most versions between two engines that serve."""

    def __post_init__(self) -> None:
        self.fleet = Fleet(self.engines, self.admission.version, max_restarts=10**9)
        self.pulls = WeightPulls(self.fleet, self.pull)
        self.steps = StepSchedule(push_every=self.push, last_step=self.admission.max_steps)
        self._stored = {self.admission.version}
        self._ready: list[int] = []
        self._awaiting: int | None = None
        self._loading: list[int] = []
        self._restarting: int | None = None
        self._down: list[int] = []

    def trained(self, version: int) -> None:
        if version > max([self.pulls.newest, *self._ready]):  # gathering is serial: one that takes long is overtaken by none
            self._ready.append(version)

    def group_ended(self, group: int) -> None:
        engine = group % self.engines
        self.pulls.group_ended([engine])
        if self.dies(group) and self.fleet.states[engine] is EngineState.SERVING:
            self.fleet.died(engine)
            self._down.append(engine)

    def look(self) -> list[Event]:
        """What begins now. Loads and restarts exclude one another."""
        if self.fleet.version > self.admission.version:
            self.admission.set_served(self.fleet.version)
        if self._awaiting is not None and self.fleet.version >= self._awaiting:
            self._awaiting = None
        if self._awaiting is None and self._ready:
            self._publish(self._ready.pop(0))
            return self.look()
        if self._loading or self._restarting is not None:
            return []
        if self._down:
            self._restarting = self._down.pop(0)
            self.fleet.restart(self._restarting)
            self.fleet.started(self._restarting)
            return [(self.load_s(self._restarting), "restarted", self._ask_for(self.fleet.version))]
        self._loading = self.pulls.due(self.admission.waits_for_weights(self.depth.depth))
        if not self._loading:
            return []
        version = self.pulls.begin()
        return [(self.load_s(version), "loaded", self._ask_for(version))]

    def loaded(self, version: int) -> None:
        for engine in self._loading:
            if self.fleet.states[engine] is EngineState.SERVING:
                self.loads.append((engine, version))
                self.fleet.loaded(engine, version)
        self.pulls.end(self._loading)
        self._loading = []
        versions = [self.fleet.versions[engine] for engine in self.fleet.serving]
        self.spread = max(self.spread, max(versions) - min(versions)) if versions else self.spread
        self._forget()

    def restarted(self, version: int) -> None:
        assert self._restarting is not None
        if version != self.fleet.version:  # the engine that had the oldest died meanwhile
            version = self._ask_for(self.fleet.version)
        self.fleet.verified(self._restarting, version)
        self._restarting = None

    def _publish(self, version: int) -> None:
        everyone = self.pull == 0 or self.awaited(version) or version == self.admission.max_steps
        self.published.append(version)
        self._stored.add(version)
        self.pulls.publish(version, everyone)
        self._forget()
        if everyone:
            self._awaiting = version
        else:
            self.admission.set_published(version)

    def _forget(self) -> None:
        self._stored &= self.pulls.needed
        self.most_stored = max(self.most_stored, len(self._stored))

    def _ask_for(self, version: int) -> int:
        assert version in self._stored, f"version {version} is asked for, the store has {sorted(self._stored)}"
        return version
