"""A rank of the trainer dies: the trainer starts anew from the newest checkpoint, within the same run.

What was trained after it is taken back, exactly as when the whole run is resumed. The rank's peers, which may wait for it in a
collective, start anew with it, and so does everything that shares their devices. Engines on devices of their own stay, and load
the checkpoint's version from the trainer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping

from roll.configs.ppo import PPOConfig
from roll.distributed.backend import BackendLost, NodeLost, WorkerDied, WorkerStartError
from roll.distributed.cluster import Cluster

TRAINER = frozenset({"actor_train", "actor_log_prob", "critic", "reference"})
"""The roles without which a step cannot end."""

logger = logging.getLogger(__name__)


class TrainersLost(RuntimeError):
    """More ranks of the trainer died than may be restarted."""


def start_anew(devices: Mapping[str, Collection[int]]) -> frozenset[str]:
    """The roles that start anew when a rank of the trainer dies. `devices`: those of each role."""
    taken = {device for role, held in devices.items() if role in TRAINER for device in held}
    return frozenset(role for role, held in devices.items() if taken.intersection(held))


class TrainerRestarts:
    def __init__(self, config: PPOConfig, isolated: bool) -> None:
        """`isolated`: workers are processes of their own, which can die."""
        self.seconds: list[float] = []
        """Of each restart, from the moment in which a rank was found dead until the run went on."""
        self.resumed_from: list[int] = []
        """The step that each began with."""
        self.roles = start_anew({role: worker.devices for role, worker in config.roles().items()})
        self._most = config.max_trainer_restarts if isolated else 0
        self._begun = 0
        self._found_at: float | None = None
        """When the rank was found dead for which a restart is under way."""

    async def begin(self, clusters: Mapping[str, Cluster], error: Exception) -> str:
        """`error` has ended both halves, or the restart before. If a rank of the trainer is dead, that is why: all that starts
        anew is ended, and what died is returned. Raises `error` otherwise, or if a node is lacking, and `TrainersLost`."""
        found_at = time.monotonic()
        died = isinstance(error, WorkerDied | WorkerStartError)
        again = self._most and not isinstance(error, NodeLost) and (died or self._found_at is None)
        what = await _dead_rank(clusters) if again else None
        if what is None:
            raise error
        reason = " ".join(str(error).split())
        if self._begun == self._most:
            raise TrainersLost(f"{what}, and max_trainer_restarts ({self._most}) are used up; the last time: {reason}") from error
        self._begun += 1
        self._found_at = self._found_at or found_at
        logger.warning("%s (%s)", what, reason)
        await asyncio.gather(*(clusters[role].end() for role in self.roles))
        return what

    def done(self, step: int) -> None:
        """The run goes on from this step, for the first time or again."""
        if self._found_at is not None:
            self.resumed_from.append(step)
            self.seconds.append(time.monotonic() - self._found_at)
            self._found_at = None


async def _dead_rank(clusters: Mapping[str, Cluster]) -> str | None:
    """A rank of the trainer that is dead; None if there is none, or no worker can be reached."""
    for role in sorted(TRAINER & clusters.keys()):
        try:
            silent = await clusters[role].silent()
        except BackendLost:
            return None
        for rank, why in silent.items():
            if isinstance(why, WorkerDied):
                return f"worker {clusters[role].workers[rank].name} of role {role} died"
    return None
