"""Decides the response to failures, on plain values: a restart of the trainer, the synchronous schedule.

A rank of the trainer dies: the trainer restarts from the newest checkpoint, within the same run. Later steps are taken back,
exactly as when the whole run is resumed. The rank's peers, which may wait for it in a collective, restart with it, and so does
everything that shares their devices. Engines on devices of their own stay, and load the checkpoint's version from the trainer.

Rollouts fail again and again: the run goes on in the synchronous schedule, until it is resumed. Groups under way are rolled out
and trained: nothing is dropped, and no step is lost. From then on groups start as with `async_generation_ratio: 0`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from roll.core.configs.ppo import PPOConfig
from roll.core.distributed.clock import monotonic
from roll.core.distributed.cluster import Cluster
from roll.core.errors import BackendLost, WorkerDied, WorkersLost, WorkerStartError
from roll.core.pipeline.roles import of_trainer
from roll.core.pipeline.state import RunState

logger = logging.getLogger(__name__)


def restarted_roles(devices: Mapping[str, Collection[int]]) -> frozenset[str]:
    """Returns the roles that restart when a rank of the trainer dies. `devices`: the devices of each role."""
    taken = {device for role, held in devices.items() if of_trainer(role) for device in held}
    return frozenset(role for role, held in devices.items() if taken.intersection(held))


class TrainerRestarts:
    def __init__(self, config: PPOConfig, isolated: bool) -> None:
        """`isolated`: workers are processes of their own, which can die."""
        self.seconds: list[float] = []
        """Seconds of each restart, from the moment in which a rank was found dead until the run went on."""
        self.resumed_from: list[int] = []
        """First step of each restart."""
        self.roles = restarted_roles({role: worker.devices for role, worker in config.roles().items()})
        self._most = config.max_trainer_restarts if isolated else 0
        self._begun = 0
        self._found_at: float | None = None
        """Time at which the dead rank was found whose restart is under way."""

    async def begin(self, clusters: Mapping[str, Cluster], error: Exception) -> str:
        """Handles `error`, which has ended both sides, or the restart before. If a rank of the trainer is dead, that is the
        cause: ends everything that restarts, and returns a sentence about the dead rank. Raises `error` otherwise, and
        `WorkersLost`."""
        found_at = monotonic()
        died = isinstance(error, WorkerDied | WorkerStartError)
        again = self._most and (died or self._found_at is None)
        what = await dead_rank(clusters) if again else None
        if what is None:
            raise error
        reason = " ".join(str(error).split())
        if self._begun == self._most:
            raise WorkersLost(f"{what}, and max_trainer_restarts ({self._most}) are used up; the last time: {reason}") from error
        self._begun += 1
        self._found_at = self._found_at or found_at
        logger.warning("%s (%s)", what, reason)
        await asyncio.gather(*(clusters[role].end() for role in self.roles))
        return what

    def done(self, step: int) -> None:
        """Records that the run goes on from this step, for the first time or again."""
        if self._found_at is not None:
            self.resumed_from.append(step)
            self.seconds.append(monotonic() - self._found_at)
            self._found_at = None


async def dead_rank(clusters: Mapping[str, Cluster]) -> str | None:
    """Returns a sentence about a rank of the trainer that is dead, or may not have done its part of a step though it lives; None
    if there is none, or no worker can be reached."""
    for role in sorted(filter(of_trainer, clusters)):
        cluster = clusters[role]
        try:
            silent = await cluster.silent()
        except BackendLost:
            return None
        dead = {rank for rank, why in silent.items() if isinstance(why, WorkerDied)}
        for rank in sorted(dead) or sorted(cluster.unanswered):
            what = "died" if rank in dead else "lost its connection during a call"
            return f"worker {cluster.workers[rank].name} of role {role} {what}"
    return None


class Fallback:
    def __init__(self, after: int) -> None:
        """`after`: number of replaced workers that makes the run synchronous (`synchronous_after_failures`); 0: none does."""
        self.since: int | None = None
        """The step after which the schedule is synchronous."""
        self._after = after

    def is_due(self, restarts: Mapping[str, int]) -> bool:
        """True if the run becomes synchronous. `restarts`: number of replaced workers of each role."""
        failures = sum(count for role, count in restarts.items() if not of_trainer(role))
        return self.since is not None or 0 < self._after <= failures

    async def watch(self, clusters: Mapping[str, Cluster], state: RunState) -> None:
        """Runs as long as the run does. A run that goes back to a checkpoint stays synchronous."""
        await state.groups.until(lambda: self.is_due({role: cluster.restarts for role, cluster in clusters.items()}))
        if self.since is None:
            self.since = state.record.step
            state.note(
                f"{self._after} workers had to be replaced (synchronous_after_failures): what is under way is trained, then the "
                f"run goes on synchronously; resumed, it has async_generation_ratio {state.groups.admission.ratio:g} again"
            )
        state.groups.go_synchronous()
        await asyncio.Event().wait()
