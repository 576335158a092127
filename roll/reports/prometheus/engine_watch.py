"""Asks the engines for their figures, for the page of Prometheus."""

from __future__ import annotations

import asyncio

from roll.core.distributed.backend import WorkerHandle
from roll.core.distributed.cluster import Cluster
from roll.core.workers.infer_interface import EngineStats
from roll.reports.prometheus.page import MetricsPage

EVERY_S = 5.0
LONGEST_S = 5.0
"""Seconds after which an engine has no figures."""


async def watch_engines(cluster: Cluster, page: MetricsPage) -> None:
    """Runs as long as the run does. An engine that is being replaced has no figures."""
    while True:
        found = await asyncio.gather(*map(_figures, cluster.workers))
        page.engines = {engine: stats for engine, stats in enumerate(found) if stats is not None}
        await asyncio.sleep(EVERY_S)


async def _figures(worker: WorkerHandle) -> EngineStats | None:
    try:
        stats: EngineStats = await asyncio.wait_for(worker.call("stats"), LONGEST_S)
    except Exception:  # boundary: the fleet finds out why, and replaces the engine
        return None
    return stats
