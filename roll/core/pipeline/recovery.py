"""Continues a run after a failed attempt, around the loop in `run.py`."""

from __future__ import annotations

import asyncio

from roll.core.distributed.clock import monotonic
from roll.core.distributed.cluster import Cluster
from roll.core.engines.engine_fleet import NODE_LOOK_S
from roll.core.errors import NodeLost, WorkersLost
from roll.core.pipeline.clusters import device_locks, settle, start_clusters
from roll.core.pipeline.lifecycle import RunLifecycle


class Recovery:
    """A failure is final."""

    def __init__(self, run: RunLifecycle, clusters: dict[str, Cluster]) -> None:
        self._run = run
        self._clusters = clusters

    async def begin(self) -> None:
        """Prepares the next attempt; an error here is a failure of that attempt."""

    async def after(self, error: Exception) -> None:
        """Handles a failed attempt. Raises `error`, or a better one, if there is to be no other attempt."""
        raise error


class TrainerRecovery(Recovery):
    """A rank of the trainer that dies costs the steps since the newest checkpoint: the run goes on from it within the same
    process, and engines on devices of their own stay up."""

    _died = ""
    """The dead process, in words for people."""

    async def begin(self) -> None:
        """Resumes the run from its newest checkpoint or, while there is none, from its beginning."""
        if not self._died:
            return
        await self._wait_for_nodes()
        run, clusters = self._run, self._clusters
        checkpoint, restarted = await asyncio.to_thread(run.prepared.newest_checkpoint), run.restarts.roles
        await run.state.groups.leave()
        run.go_back(run.prepared.resumed(checkpoint))
        run.state.engines_are_stale = "actor_infer" not in restarted
        await run.state.reports.begin()
        run.state.note(f"{self._died}: the run goes on from step {run.state.first_step}, as if it had been resumed")
        run.devices = device_locks(run.config)  # roles that stay share none with those that restart
        started = await start_clusters(
            run.config, run.prepared, {}, run.inventory, run.backend, run.state.note, run.devices, restarted
        )
        for role, cluster in started.items():
            cluster.restarts = clusters[role].restarts
        clusters |= started
        await settle({role: cluster for role, cluster in clusters.items() if role not in restarted})

    async def _wait_for_nodes(self) -> None:
        """For one that is started again, or a spare one, as long as for nodes at the start (`device_timeout`). Raises
        `WorkersLost`."""
        run, within_s, told = self._run, self._run.config.waits_for_devices_s, False
        end = monotonic() + within_s
        devices = {device for role in run.restarts.roles for device in run.config.roles()[role].devices}
        while True:
            try:
                return await asyncio.to_thread(run.backend.check_nodes, devices)
            except NodeLost as lost:
                if (left := end - monotonic()) <= 0 or run.state.interrupted:
                    raise WorkersLost(f"{lost} within {within_s:g} s (device_timeout)") from lost
                if not told:
                    told = True
                    run.state.note(f"{self._died}: {lost}; it is waited for, up to {left:.0f} s (device_timeout)")
            await asyncio.sleep(min(NODE_LOOK_S, left))

    async def after(self, error: Exception) -> None:
        if self._run.state.interrupted:
            raise error
        self._died = await self._run.restarts.begin(self._clusters, error)
