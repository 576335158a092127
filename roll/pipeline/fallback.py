"""A run whose rollouts fail again and again goes on in the synchronous schedule, until it is resumed.

What is under way is rolled out and trained: nothing is dropped, and no step is lost. From then on groups start as with
`async_generation_ratio: 0`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from roll.distributed.cluster import Cluster
from roll.pipeline.state import RunState
from roll.pipeline.trainer_restarts import TRAINER


class Fallback:
    def __init__(self, after: int) -> None:
        """`after`: workers that had to be replaced (`synchronous_after_failures`); 0: any number."""
        self.since: int | None = None
        """The step after which the schedule is synchronous."""
        self._after = after

    def is_due(self, restarts: Mapping[str, int]) -> bool:
        """`restarts`: how many workers of each role were replaced."""
        failures = sum(count for role, count in restarts.items() if role not in TRAINER)
        return self.since is not None or 0 < self._after <= failures

    async def watch(self, clusters: Mapping[str, Cluster], state: RunState) -> None:
        """Runs as long as the run does. A run that goes back to a checkpoint stays synchronous."""
        await state.groups.until(lambda: self.is_due({role: cluster.restarts for role, cluster in clusters.items()}))
        if self.since is None:
            self.since = state.record.step
            state.record.display.note(
                f"{self._after} workers had to be replaced (synchronous_after_failures): what is under way is trained, then the "
                f"run goes on synchronously; resumed, it has async_generation_ratio {state.groups.admission.ratio:g} again"
            )
        state.groups.go_synchronous()
        await asyncio.Event().wait()
