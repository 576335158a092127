"""The memory of the driver and of every worker: metrics of each step, and a warning before it is full."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping

from roll.distributed.cluster import Cluster
from roll.distributed.process_memory import ProcessMemory, process_memory
from roll.metrics.memory_growth import Growth, MemoryReadings, alarm

DRIVER = "driver"
EVERY_S = 10.0


class MemoryWatch:
    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._latest: dict[str, dict[str, ProcessMemory]] = {}
        """By role and process."""
        self._peak: dict[str, float] = {}
        """By metric."""
        self._readings: dict[str, tuple[int, MemoryReadings]] = {}
        """By process: a worker that was replaced begins anew."""
        self._warned: set[str] = set()

    async def run(self, clusters: Mapping[str, Cluster]) -> None:
        """Reads, as long as the run runs. A worker that gives no answer is left out: others notice."""
        while True:
            own = process_memory(with_children=False)
            answers = await asyncio.gather(*(cluster.memory(EVERY_S) for cluster in clusters.values()))
            self.add(time.monotonic(), {DRIVER: {DRIVER: own} if own else {}, **dict(zip(clusters, answers, strict=True))})
            await asyncio.sleep(EVERY_S)

    def add(self, at_s: float, latest: dict[str, dict[str, ProcessMemory]]) -> None:
        self._latest = latest
        for name, value in self.metrics().items():
            self._peak[name] = max(value, self._peak.get(name, 0.0))
        for processes in latest.values():
            for name, memory in processes.items():
                if name not in self._readings or self._readings[name][0] != memory.pid:
                    self._readings[name] = memory.pid, MemoryReadings()
                self._readings[name][1].add(at_s, memory.private_mb)

    def metrics(self) -> dict[str, float]:
        """`memory/<role>_rss_mb` of the largest worker, and `memory/<role>_device_peak_mb` where a device is used."""
        found = {}
        for role, processes in self._latest.items():
            if processes:
                found[f"memory/{role}_rss_mb"] = max(memory.rss_mb for memory in processes.values())
            if peaks := [memory.device_peak_mb for memory in processes.values() if memory.device_peak_mb is not None]:
                found[f"memory/{role}_device_peak_mb"] = max(peaks)
        return found

    def warn(self, rest_s: float, step_s: float) -> list[str]:
        """The warnings that are new; one a role. `rest_s`: how long the run will go on; `step_s`: how long a step takes."""
        growing: dict[str, dict[str, Growth]] = defaultdict(dict)
        free, role_of = {}, {}
        for role, processes in self._latest.items():
            for name, memory in processes.items():
                free[memory.host], role_of[name] = memory.free_mb, role
                if growth := self._readings[name][1].growth:
                    growing[memory.host][name] = growth
        new = []
        for host, of_host in growing.items():
            found = alarm(of_host, free[host], rest_s, step_s)
            if found is not None and role_of[found[0]] not in self._warned:
                self._warned.add(role_of[found[0]])
                new.append(found[1])
        self.warnings += new
        return new

    def figures(self) -> dict[str, object]:
        """The last values of the metrics, and the largest."""
        return {name.removeprefix("memory/"): {"last": value, "peak": self._peak[name]} for name, value in self.metrics().items()}
