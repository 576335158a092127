"""A Ray cluster of several nodes, all of them processes of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest


class Nodes:
    """`alive`: the raylet of each node, the head's first."""

    def __init__(self, cluster: Any, descendants: Callable[[int], dict[int, str]]) -> None:
        """`descendants`: of a process, with their titles."""
        self._cluster, self._descendants = cluster, descendants
        self.ids: dict[int, str] = {}
        """Of each node that there ever was, by its raylet."""
        self.alive = [self._raylet(node) for node in cluster.list_all_nodes()]

    def add(self, **resources: float) -> int:
        """The node's raylet."""
        self.alive.append(self._raylet(self._cluster.add_node(object_store_memory=100 << 20, **resources)))
        return self.alive[-1]

    def of_workers(self, name: str) -> list[int]:
        """The raylets of the nodes that have a worker of this name."""
        return [each for each in self.alive if any(name in title for title in self._descendants(each).values())]

    def of_worker(self, name: str) -> int | None:
        return next(iter(self.of_workers(name)), None)

    def kill(self, raylet: int | None) -> None:
        """It, and every process below it, at once."""
        assert raylet is not None
        self.alive.remove(raylet)
        for pid in (raylet, *self._descendants(raylet)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _raylet(self, node: Any) -> int:
        pid = int(node.all_processes["raylet"][0].process.pid)
        self.ids[pid] = node.node_id
        return pid


@contextlib.contextmanager
def ray_cluster(
    monkeypatch: pytest.MonkeyPatch,
    paths: Sequence[Path],
    descendants: Callable[[int], dict[int, str]],
    nodes: Sequence[dict[str, float]],
    **settings: float,
) -> Iterator[Nodes]:
    """What Ray counts on each of the `nodes`, the head first. `RAY_ADDRESS` leads there. The cluster asks for no token, even if a
    Ray that this process has started before has left its mode in the environment. `paths`: of the workers' code. `settings`:
    Ray's own, of the cluster."""
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))
        cluster = Cluster()
        of_head: dict[str, Any] = {"temp_dir": f"{folder}/t", "include_dashboard": False, "_system_config": settings}
        for own, resources in zip((of_head, *({} for _ in nodes[1:])), nodes, strict=True):
            cluster.add_node(object_store_memory=100 << 20, **resources, **own)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        try:
            yield Nodes(cluster, descendants)
        finally:
            cluster.shutdown()
