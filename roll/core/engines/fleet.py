"""The states of the inference engines' replicas: which may serve, and with which weights, and
when each takes newer ones. Pure.

    SERVING ──died──▶ DEAD ──restart──▶ STARTING ──started──▶ LOADING ──verified──▶ SERVING
       │               ▲                   │ died              ▲  │ died
       │               └───────────────────┴───────────────────┼──┘
       └──silenced──▶ SILENT ──answered────────────────────────┘     (died: as from SERVING)

Replicas may serve different policy versions; the oldest of them is the fleet's. The only way back to SERVING is a verified load
of that one. A SILENT replica may live: no version waits for it, and its requests go elsewhere as well.

`WeightPulls`: an engine takes newer weights after every m groups that it had a part in, and earlier where waiting would do harm.
Engines that put a newer version off sample their groups under an older one. Admission goes on counting from the oldest version
that an engine serves, so the bound on staleness holds whatever m is. Two things end the waiting immediately: no group may start
under the oldest version and one could under the newest (the engines that serve the oldest load), and a request for a version on
all engines, by a validation or the end of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from roll.core.errors import IllegalTransition, WorkersLost


class EngineState(StrEnum):
    SERVING = "serving"
    SILENT = "silent"
    DEAD = "dead"
    STARTING = "starting"
    LOADING = "loading"


class EngineEvent(StrEnum):
    DIED = "died"
    SILENCED = "silenced"
    ANSWERED = "answered"
    RESTART = "restart"
    STARTED = "started"
    VERIFIED = "verified"


TRANSITIONS: dict[tuple[EngineState, EngineEvent], EngineState] = {
    (EngineState.SERVING, EngineEvent.DIED): EngineState.DEAD,
    (EngineState.SERVING, EngineEvent.SILENCED): EngineState.SILENT,
    (EngineState.SILENT, EngineEvent.ANSWERED): EngineState.LOADING,
    (EngineState.SILENT, EngineEvent.DIED): EngineState.DEAD,
    (EngineState.LOADING, EngineEvent.SILENCED): EngineState.SILENT,
    (EngineState.STARTING, EngineEvent.DIED): EngineState.DEAD,
    (EngineState.LOADING, EngineEvent.DIED): EngineState.DEAD,
    (EngineState.DEAD, EngineEvent.RESTART): EngineState.STARTING,
    (EngineState.STARTING, EngineEvent.STARTED): EngineState.LOADING,
    (EngineState.LOADING, EngineEvent.VERIFIED): EngineState.SERVING,
}
"""The allowed transitions; all others are refused."""


class Fleet:
    def __init__(self, replicas: int, version: int, max_restarts: int, empty: bool = False, restarts: int = 0) -> None:
        """All engines serve `version`, or have no weights yet (`empty`) and load it first. `max_restarts`: the limit over all
        engines in a run, of which it has had `restarts`."""
        self.version = version
        """The oldest policy version that a serving replica has; while none serves, the last such."""
        self.versions = [version] * replicas
        """Version that each replica serves, or served when it was lost."""
        self.states = [EngineState.LOADING if empty else EngineState.SERVING] * replicas
        self._serve = Counter({} if empty else {version: replicas})
        """Version -> serving replicas; there may be thousands of them, and few versions."""
        self.restarts = restarts
        self._max_restarts = max_restarts

    @property
    def serving(self) -> list[int]:
        return [replica for replica, state in enumerate(self.states) if state is EngineState.SERVING]

    def serving_of(self, replicas: Iterable[int]) -> list[int]:
        return [replica for replica in replicas if self.states[replica] is EngineState.SERVING]

    def died(self, replica: int) -> bool:
        """Records a death; False if it was known already."""
        if self.states[replica] is EngineState.DEAD:
            return False
        self._leaves(replica, EngineEvent.DIED)
        return True

    def silenced(self, replica: int) -> None:
        """Records that the replica gives no sign of life."""
        self._leaves(replica, EngineEvent.SILENCED)

    def answered(self, replica: int) -> None:
        """Notes a sign of life from a silent replica, which then loads the version of the others."""
        self._take(replica, EngineEvent.ANSWERED)

    def loaded(self, replica: int, version: int) -> None:
        """Records that a serving replica serves `version` from now on."""
        self._serves(replica, -1)
        self.versions[replica] = version
        self._serves(replica, +1)
        self._settle()

    def restart(self, replica: int) -> None:
        """Raises `WorkersLost` if the restarts are used up."""
        if self.restarts >= self._max_restarts:
            raise WorkersLost(f"engine {replica} died, and max_engine_restarts ({self._max_restarts}) are used up")
        self._take(replica, EngineEvent.RESTART)
        self.restarts += 1

    def unplaced(self, replica: int) -> None:
        """Records that the restart did not begin: there is no place for it."""
        self._take(replica, EngineEvent.DIED)
        self.restarts -= 1

    @property
    def lost(self) -> bool:
        """True if no replica serves or is about to."""
        return all(state is EngineState.DEAD for state in self.states)

    def started(self, replica: int) -> None:
        self._take(replica, EngineEvent.STARTED)

    def verified(self, replica: int, version: int) -> None:
        """Compares the replica's own report of its `version` with the fleet's. Raises `ValueError` if they differ."""
        if version != self.version:
            raise ValueError(f"engine {replica} serves version {version}, the others {self.version}")
        self._take(replica, EngineEvent.VERIFIED)
        self.versions[replica] = version
        self._serves(replica, +1)

    def _leaves(self, replica: int, event: EngineEvent) -> None:
        self._serves(replica, -1)
        self._take(replica, event)
        self._settle()

    def _serves(self, replica: int, by: int) -> None:
        if self.states[replica] is EngineState.SERVING:
            self._serve[self.versions[replica]] += by

    def _settle(self) -> None:
        self.version = min(+self._serve, default=self.version)

    def _take(self, replica: int, event: EngineEvent) -> None:
        following = TRANSITIONS.get((self.states[replica], event))
        if following is None:
            raise IllegalTransition(f"engine {replica} is {self.states[replica]}: {event} cannot happen")
        self.states[replica] = following


class WeightPulls:
    def __init__(self, fleet: Fleet, interval: int) -> None:
        """`interval`: m; with 0 engines take every version as soon as they can."""
        self.newest = fleet.version
        self._fleet = fleet
        self._interval = interval
        self._groups = [0] * len(fleet.states)
        """Groups that ended since the engine's last load."""
        self._awaited = fleet.version
        """Version that all engines take, or a newer one, without delay."""
        self._loading: tuple[int, ...] = ()

    def publish(self, version: int, awaited: bool = False) -> None:
        """Publishes `version`, which can be pulled. `awaited`: someone waits until all engines serve it."""
        if version <= self.newest:
            raise ValueError(f"version {version} published after version {self.newest}")
        self.newest = version
        if awaited:
            self._awaited = version

    def group_ended(self, engines: Iterable[int]) -> None:
        """Counts a group that is rolled out. `engines`: the engines that sampled some of its tokens."""
        for engine in engines:
            self._groups[engine] += 1

    def due(self, starving: bool) -> list[int]:
        """The engines that load the newest version now. `starving`: no group may start, and one could under that version."""
        fleet = self._fleet
        if fleet.version == self.newest:  # asked at every change
            return []
        return [
            engine
            for engine in fleet.serving
            if (version := fleet.versions[engine]) < self.newest
            and (version < self._awaited or self._groups[engine] >= self._interval or (starving and version == fleet.version))
        ]

    def ahead(self, version: int) -> list[int]:
        """Returns the engines that will be due when `version` is published as an awaited one; none if it is published."""
        versions, newer = self._fleet.versions, version > self.newest
        return [engine for engine in self._fleet.serving if newer and versions[engine] < version]

    def begin(self) -> int:
        """Returns the version to load: always the newest, so one that was overtaken is never asked for."""
        self._loading = (self.newest,)
        return self.newest

    def end(self, engines: Iterable[int]) -> None:
        """Ends the load of `engines`, whether they serve the version or were lost."""
        self._loading = ()
        for engine in engines:
            self._groups[engine] = 0

    @property
    def needed(self) -> frozenset[int]:
        """Versions that may still be asked for: by an engine that restarts (whichever is the oldest then), by the next load,
        by one under way."""
        return frozenset({*self._fleet.versions, self._fleet.version, self.newest, *self._loading})
