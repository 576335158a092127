"""The memory of the driver and of every worker, for the metrics of each step and the summary."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from roll.core.distributed.cluster import Cluster
from roll.core.distributed.machine import ProcessMemory, process_memory

DRIVER = "driver"
EVERY_S = 10.0


class MemoryWatch:
    def __init__(self) -> None:
        self._latest: dict[str, dict[str, ProcessMemory]] = {}
        """By role and process."""
        self._peak: dict[str, float] = {}
        """By metric."""

    async def run(self, clusters: Mapping[str, Cluster]) -> None:
        """Reads, as long as the run runs. A worker that gives no answer is left out: others notice."""
        while True:
            own = process_memory(with_children=False)
            answers = await asyncio.gather(*(cluster.memory(EVERY_S) for cluster in clusters.values()))
            self.add({DRIVER: {DRIVER: own}, **dict(zip(clusters, answers, strict=True))})
            await asyncio.sleep(EVERY_S)

    def add(self, latest: dict[str, dict[str, ProcessMemory]]) -> None:
        self._latest = latest
        for name, value in self.metrics().items():
            self._peak[name] = max(value, self._peak.get(name, 0.0))

    def metrics(self) -> dict[str, float]:
        """`memory/<role>_rss_mb` of the largest worker, and `memory/<role>_device_peak_mb` where a device is used."""
        found = {}
        for role, processes in self._latest.items():
            if processes:
                found[f"memory/{role}_rss_mb"] = max(memory.rss_mb for memory in processes.values())
            if peaks := [memory.device_peak_mb for memory in processes.values() if memory.device_peak_mb is not None]:
                found[f"memory/{role}_device_peak_mb"] = max(peaks)
        return found

    def figures(self) -> dict[str, object]:
        """The last values of the metrics, and the largest."""
        return {name.removeprefix("memory/"): {"last": value, "peak": self._peak[name]} for name, value in self.metrics().items()}
