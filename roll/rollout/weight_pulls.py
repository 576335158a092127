"""When an engine takes newer weights: after every m groups that it had a part in, and earlier where waiting would do harm. Pure.

Engines that put a newer version off sample their groups under an older one. Admission goes on counting from the oldest version
that an engine serves, so the bound on staleness holds whatever m is. Two things end the waiting at once: no group may start under
the oldest version and one could under the newest (the engines that serve the oldest load), and someone who asks for a version on
all engines, a validation or the end of the run.
"""

from __future__ import annotations

from collections.abc import Iterable

from roll.rollout.fleet import Fleet


class WeightPulls:
    def __init__(self, fleet: Fleet, interval: int) -> None:
        """`interval`: m; with 0 engines take every version as soon as they can."""
        self.newest = fleet.version
        self._fleet = fleet
        self._interval = interval
        self._groups = [0] * len(fleet.states)
        """Groups that ended since the engine's last load."""
        self._awaited = fleet.version
        """All engines take this version, or a newer one, without delay."""
        self._loading: tuple[int, ...] = ()

    def publish(self, version: int, awaited: bool = False) -> None:
        """`version` can be pulled. `awaited`: someone waits until all engines serve it."""
        if version <= self.newest:
            raise ValueError(f"version {version} published after version {self.newest}")
        self.newest = version
        if awaited:
            self._awaited = version

    def group_ended(self, engines: Iterable[int]) -> None:
        """A group is rolled out. `engines`: the engines that sampled some of its tokens."""
        for engine in engines:
            self._groups[engine] += 1

    def due(self, starving: bool) -> list[int]:
        """The engines that load the newest version now. `starving`: no group may start, and one could under that version."""
        fleet = self._fleet
        return [
            engine
            for engine in fleet.serving
            if (version := fleet.versions[engine]) < self.newest
            and (version < self._awaited or self._groups[engine] >= self._interval or (starving and version == fleet.version))
        ]

    def begin(self) -> int:
        """The version to load: always the newest, so one that was overtaken is never asked for."""
        self._loading = (self.newest,)
        return self.newest

    def end(self, engines: Iterable[int]) -> None:
        """The load of `engines` is over, whether they serve the version or were lost."""
        self._loading = ()
        for engine in engines:
            self._groups[engine] = 0

    @property
    def needed(self) -> frozenset[int]:
        """Versions that may still be asked for: by an engine that starts anew (whichever is the oldest then), by the next load,
        by one under way."""
        return frozenset({*self._fleet.versions, self._fleet.version, self.newest, *self._loading})
