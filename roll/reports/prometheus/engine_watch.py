"""Asks the engines for their figures, for the page of Prometheus."""

from __future__ import annotations

import asyncio

from roll.core.distributed.backend import WorkerHandle
from roll.core.distributed.cluster import Cluster
from roll.core.workers.infer_interface import EngineStats, OwnMetric
from roll.reports.prometheus.page import MetricsPage

EVERY_S = 5.0
LONGEST_S = 5.0
"""Seconds after which an engine has no figures."""


async def watch_engines(cluster: Cluster, page: MetricsPage) -> None:
    """Runs as long as the run does. An engine that is being replaced has no figures."""
    while True:
        found = await asyncio.gather(*map(figures_of, cluster.workers))
        answered = {engine: each for engine, each in enumerate(found) if each is not None}
        page.engines = {engine: stats for engine, (stats, _) in answered.items()}
        page.own = {engine: own for engine, (_, own) in answered.items() if own}
        await asyncio.sleep(EVERY_S)


async def figures_of(worker: WorkerHandle) -> tuple[EngineStats, list[OwnMetric]] | None:
    """The engine's figures, and those that its package has of its own."""
    try:
        async with asyncio.timeout(LONGEST_S):
            return await worker.call("stats"), await worker.call("own_metrics")
    except Exception:  # boundary: the fleet finds out why, and replaces the engine
        return None
