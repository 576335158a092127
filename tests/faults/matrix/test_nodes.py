"""A Ray cluster of three nodes, all of them on this machine, and one of them gone in mid-run: its raylet and every process below
it, at once. Engines and environments go on elsewhere, a rank of the trainer where a spare node is; else the run ends, names the
node, and goes on in a cluster of two."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

OVERRIDES = ("num_gpus_per_node=1", "save_steps=1", "max_ckpt_to_keep=2", "heartbeat_timeout=15", "resume_from_checkpoint=auto")
THREE = ("num_nodes=3", "actor_infer.device_mapping='1-2'")
TRAINERS = (
    *("num_nodes=3", "actor_infer.device_mapping='0'", "actor_train.device_mapping='1-2'"),
    "actor_train.training_args.per_device_train_batch_size=8",
)
TWO = ("num_nodes=2", "actor_infer.device_mapping='1'")


class Nodes:
    """`alive`: the raylet of each node, the head's first."""

    def __init__(self, cluster, descendants: Callable[[int], dict[int, str]]) -> None:
        self._cluster, self._descendants = cluster, descendants
        self.alive = [_raylet(node) for node in cluster.list_all_nodes()]

    def add(self) -> None:
        self.alive.append(_raylet(self._cluster.add_node(num_cpus=2, object_store_memory=100 << 20)))

    def of_worker(self, name: str) -> int | None:
        """The raylet of the worker's node."""
        found = [each for each in self.alive if any(name in title for title in self._descendants(each).values())]
        return found[0] if found else None

    def kill(self, raylet: int) -> None:
        self.alive.remove(raylet)
        for pid in (raylet, *self._descendants(raylet)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _raylet(node) -> int:
    return node.all_processes["raylet"][0].process.pid


@pytest.fixture
def nodes(monkeypatch, faults) -> Iterator[Nodes]:
    """With a home of its own, where no run has left a token."""
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as home:
        monkeypatch.setenv("HOME", home)
        paths = os.pathsep.join(map(str, (faults.HERE, faults.REPO)))
        monkeypatch.setenv("PYTHONPATH", paths)  # a node's processes find the workers' code as the driver does
        cluster = Cluster()
        for own in ({"temp_dir": f"{home}/t", "include_dashboard": False}, {}, {}):
            cluster.add_node(num_cpus=2, object_store_memory=100 << 20, **own)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        yield Nodes(cluster, faults.descendants)
        cluster.shutdown()


@pytest.mark.parametrize(("pipeline", "worker"), [("rlvr", "actor_infer-1"), ("agentic", "environments-1")])
def test_a_node_is_lost_and_the_run_goes_on_without_it(launch, row, verified, nodes, pipeline, worker):
    line, agentic = row(pipeline, worker, "a node of three is gone"), pipeline == "agentic"
    run = launch("max_steps=100000", *OVERRIDES, *THREE, local=False, agentic=agentic)
    run.wait_for_steps(3, 400)
    assert len({nodes.of_worker(name) for name in ("actor_train-0", "actor_infer-0", "actor_infer-1")}) == 3
    assert nodes.of_worker("actor_train-0") == nodes.alive[0], "the driver's node is the first"
    before = len(run.steps())
    line.begins()
    nodes.kill(nodes.of_worker(worker))
    run.wait_for(f"serve on without engine {0 if agentic else 1}", lambda: "serve on without engine" in run.output, 240)
    run.wait_for_steps(max(before, len(run.steps())) + 4, 240)
    line.ends("not as promised")
    run.signal(signal.SIGTERM)
    assert run.end(240) == 130, run.output
    summary = run.summary()
    assert (summary["engine_restarts"], summary["trainer_recovery_s"]) == (0, [])
    assert not agentic or summary["environment_worker_deaths"] > 0
    verified(run.dir)
    line.outcome = "the other engine serves on"


def test_a_trainers_node_is_lost_and_the_run_ends_with_a_reason_that_names_it(launch, row, verified, failed_in_one_line, nodes):
    line = row("rlvr", "actor_train-1", "a node of three is gone")
    run = launch("max_steps=100000", *OVERRIDES, *TRAINERS, local=False)
    run.wait_for_steps(3, 400)
    line.begins()
    nodes.kill(nodes.of_worker("actor_train-1"))
    reason = failed_in_one_line(run)
    line.ends("the run ended")
    assert "node 2 of the run, " in reason and "is gone, and the cluster has no other for it" in reason
    verified(run.dir)

    steps = run.summary()["steps"]
    again = launch(f"max_steps={steps + 4}", *OVERRIDES, *TWO, local=False)
    assert again.end(400) == 0, again.output
    assert (again.summary()["status"], again.summary()["steps"]) == ("finished", steps + 4)
    verified(again.dir)
    line.outcome = f"ended, naming the node; resumed on two nodes from step {again.summary()['resumed_from_step']} of {steps}"


def test_a_spare_node_takes_the_place_of_one_that_is_lost(launch, row, verified, nodes):
    line = row("rlvr", "actor_train-1", "a node of three is gone, a fourth is there")
    nodes.add()
    run = launch("max_steps=100000", *OVERRIDES, *TRAINERS, local=False)
    run.wait_for_steps(3, 400)
    before = len(run.steps())
    line.begins()
    nodes.kill(nodes.of_worker("actor_train-1"))
    run.wait_for("a line about the restart", lambda: "as if it had been resumed" in run.output, 240)
    run.wait_for_steps(before + 2, 240)
    line.ends("not as promised")
    run.signal(signal.SIGTERM)
    assert run.end(240) == 130, run.output
    summary = run.summary()
    assert len(summary["trainer_recovery_s"]) == 1
    verified(run.dir)
    line.outcome = f"the trainer starts there, from step {summary['trainer_resumed_from'][0]} of {before}"


def test_ranks_of_a_trainer_on_two_nodes_meet(launch, verified, nodes):
    """By a port that is free on the first rank's node, wherever the driver is."""
    run = launch("max_steps=4", *OVERRIDES, *TRAINERS, local=False)
    assert run.end(400) == 0, run.output
    assert (run.summary()["status"], run.summary()["steps"]) == ("finished", 4)
    verified(run.dir)
