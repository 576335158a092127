"""A run on one page.

    admit → (rollouts) → keep → [groups] → lease → (value | log_prob | reference | teachers) → advantage → train → publish
      ▲                                                                                           │ → validate
      └── admission ◀── version served ◀── engines flip ◀── [weight store] ◀──────────────────────┘

The stages are in `stages.py`, their work is in `explorer/`, `trainer/` and `engines/`. Which of them a process has follows from
`mode` (`topology.py`). Training with `async_generation_ratio: 0` is synchronous only because admission starts nothing early.

It ends
  in order:     the last step is trained: `lease` closes, each stage after it closes in turn, the last checkpoint is written
  by a failure: of a stage or of what is watched beside it: the step that is being trained ends, the flow stops all stages, a
                checkpoint is written if it can be (`last_checkpoint.py`); `recovery.py` decides whether to try again
  by a signal, an alarm or a callback: no group starts and no step is leased any more; the step that is being trained ends, and a
                checkpoint is written
and in all cases `lifecycle.py` ends the workers and writes the summary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping

from roll.core.configs.plain import JsonObject
from roll.core.distributed.clock import monotonic
from roll.core.distributed.cluster import Cluster
from roll.core.flow.flow import Flow
from roll.core.pipeline.clusters import watch_deaths
from roll.core.pipeline.lifecycle import RunLifecycle
from roll.core.pipeline.summary import RunComponents
from roll.core.pipeline.topology import Surroundings, Topology, topology_of

REFRESH_S = 0.5
"""Seconds between two refreshes of the state of each role."""


class Run(RunLifecycle):
    """`await Run(...).run()` returns the summary, which is also in summary.json. Errors end as status "failed"."""

    async def attempt(self, clusters: Mapping[str, Cluster]) -> None:
        """Runs one attempt, from workers that are up to the end of its last stage."""
        await self.state.join()
        accelerators = self.inventory.kind == "cuda"
        around = Surroundings(self.config, self.prepared, self.state, self.devices, self.backend, self.explorer, accelerators)
        topology = topology_of(self.config)(around, clusters)
        try:
            if await topology.open():
                await self._flow(topology, clusters)
            self.stopped_by = await topology.close()
        finally:
            topology.release()

    async def _flow(self, topology: Topology, clusters: Mapping[str, Cluster]) -> None:
        sides = topology.sides(self.rollouts)
        flow = Flow(topology.ledger, self.devices, monotonic, self.state.groups.changes.waits)
        for side in sides:
            flow.join(side)
        topology.begin(sides)
        self.begin(RunComponents(flow, topology.engines, topology.updates, topology.explorer), topology.counter)
        watchers = [*topology.watchers(), *self._watchers(flow, clusters)]
        async with topology.checkpoints():
            try:
                await flow.run(topology.until(sides), watchers, topology.finish, topology.finishing(sides))
                await topology.end()
            except Exception as error:  # boundary: whatever ends an attempt, what was trained is kept if it can be
                await topology.keep(error)
                raise

    async def work(self, clusters: dict[str, Cluster]) -> None:
        """Makes attempts, until one comes to its end or fails for good."""
        recovery = topology_of(self.config).recovery(self, clusters)
        while True:
            try:
                await recovery.begin()
                return await self.attempt(clusters)
            except Exception as error:  # boundary: whatever ends an attempt may follow from a worker's death
                await recovery.after(error)

    def figures(self, wall_s: float) -> JsonObject:
        figures = super().figures(wall_s)
        return topology_of(self.config).summary(figures, self.prepared.evaluated, self.state.record.results)

    def _watchers(self, flow: Flow, clusters: Mapping[str, Cluster]) -> list[Coroutine[object, object, None]]:
        groups, fallback = self.state.groups, self.fallback.watch(clusters, self.state)
        return [*self.onlookers(flow, clusters), groups.keep_in_sync(), fallback, *watch_deaths(clusters)]

    def onlookers(self, flow: Flow, clusters: Mapping[str, Cluster]) -> list[Coroutine[object, object, None]]:
        """Returns coroutines that show the state of the run to people, and change nothing."""
        record = self.state.record
        return [
            self._refresh(flow, list(clusters)),
            record.files.keep(self.figures_so_far, flow.ledger),
            record.memory.run(clusters),
            *self.prepared.onlookers(flow, clusters, record.run_dir, self.state.reports),
        ]

    async def _refresh(self, flow: Flow, clusters: list[str]) -> None:
        """Shows the run as it is now. The reward workers of all domains are one line."""
        roles = [*(role for role in clusters if not role.startswith("rewards.")), "rewards"]
        groups, reports = self.state.groups, self.state.reports
        while True:
            self.state.record.show(flow.ledger, roles, groups.changes.waits, groups.admission.counts())
            await reports.refresh()
            await asyncio.sleep(REFRESH_S)
