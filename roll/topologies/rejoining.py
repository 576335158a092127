"""The return of an explorer to its run, after the trainer went on from a checkpoint or the others took it for dead."""

from __future__ import annotations

import asyncio

from roll.core.distributed.cluster import Cluster
from roll.core.errors import Missed, VersionGone
from roll.core.pipeline.lifecycle import RunLifecycle
from roll.core.pipeline.recovery import Recovery
from roll.topologies.shared_groups import shared_groups

RETRY_S = 0.5
"""Seconds before the first attempt to rejoin a run that waits at all."""
SELDOM_S = 30.0
"""Most seconds between two attempts to rejoin a run."""


def lost_versions(error: Exception) -> bool:
    """True if an explorer fails because the trainer was started again, and no longer has the version that it serves."""
    return isinstance(error, VersionGone) or isinstance(error.__cause__, VersionGone)


def was_missed(error: Exception) -> bool:
    """True if an explorer fails because it was silent for so long that the others took it for dead."""
    return isinstance(error, Missed) or isinstance(error.__cause__, Missed)


class Rejoining:
    """Waits of an explorer before it restarts because the version that it needs is gone. Its trainer publishes another in a
    moment; if that does not come, attempts become rarer, until `patience_s` has passed. Pure."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._at: object = None
        self._waited_s = self._next_s = 0.0

    def wait_s(self, at: object) -> float | None:
        """`at`: the state of the run; a change of it is a sign that the trainer goes on. None: there is nothing to hope for."""
        if at != self._at:
            self._at, self._waited_s, self._next_s = at, 0.0, RETRY_S
            return 0.0
        if self._waited_s >= self._patience_s:
            return None
        wait_s = min(self._next_s, self._patience_s - self._waited_s)
        self._waited_s, self._next_s = self._waited_s + wait_s, min(2 * self._next_s, SELDOM_S)
        return wait_s


class ExplorerRecovery(Recovery):
    """If the trainer, which is another process, takes versions back, or no longer has the served ones, or this process was silent
    and is missed, exploring restarts with its newest."""

    def __init__(self, run: RunLifecycle, clusters: dict[str, Cluster]) -> None:
        super().__init__(run, clusters)
        self._rejoining = Rejoining(run.config.peer_timeout)

    async def after(self, error: Exception) -> None:
        groups = shared_groups(self._run.state.groups)
        missed = was_missed(error)
        if not (missed or lost_versions(error) or await groups.was_taken_back()):
            raise error
        if (wait_s := self._rejoining.wait_s((groups.branch, groups.admission.newest))) is None:
            raise error
        await asyncio.sleep(wait_s)
        why = "the others had taken this process for dead" if missed else "the trainer went on from a checkpoint"
        self._run.state.note(f"{why}: exploring restarts with the trainer's version")
