"""A Ray cluster of three nodes, all of them on this machine, and one of them gone in mid-run: its raylet and every process below
it, at once. Engines and environments go on elsewhere, a rank of the trainer where a spare node is; else the run ends, names the
node, and goes on in a cluster of two. And several runs, and processes of one, in such a cluster."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from ray_cluster import Nodes, ray_cluster

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

OVERRIDES = ("num_gpus_per_node=1", "save_steps=1", "max_ckpt_to_keep=2", "heartbeat_timeout=15", "resume_from_checkpoint=auto")
THREE = ("num_nodes=3", "actor_infer.device_mapping='1-2'")
TRAINERS = (
    *("num_nodes=3", "actor_infer.device_mapping='0'", "actor_train.device_mapping='1-2'"),
    "actor_train.training_args.per_device_train_batch_size=8",
)
TWO = ("num_nodes=2", "actor_infer.device_mapping='1'")


@pytest.fixture
def nodes(monkeypatch, faults) -> Iterator[Nodes]:
    """Its processes find the workers' code as the driver does."""
    with ray_cluster(monkeypatch, (faults.HERE, faults.REPO), faults.descendants, [{"num_cpus": 2}] * 3) as cluster:
        yield cluster


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
    nodes.add(num_cpus=2)
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


def refused(run):
    assert run.end(240) == 2, run.output
    assert "Traceback" not in run.output and "starting" not in run.output
    (line,) = [line for line in run.output.splitlines() if line.startswith("error: ")]
    return line


def test_runs_share_a_cluster_and_what_a_killed_one_held_is_another_ones(launch, row, verified, nodes):
    line = row("rlvr", "driver", "killed, while another run waits for its nodes")
    first = launch("max_steps=100000", *OVERRIDES, *TWO, local=False)
    first.wait_for_steps(1, 400)
    beside = launch("max_steps=4", *OVERRIDES, "num_gpus_per_node=2", "exp_name=beside", local=False)
    said = refused(launch(*OVERRIDES, *TWO, "exp_name=other", "device_timeout=1", local=False))
    assert "the run needs 2 CPU on each of 2 nodes, and " in said
    assert f"{first.dir} (mode both, process {first.process.pid} on " in said
    assert not (first.folder / "other" / "summary.json").exists()
    assert beside.end(400) == 0, beside.output
    waiting = launch("max_steps=4", *OVERRIDES, *TWO, "exp_name=other", "device_timeout=200", local=False)
    waiting.wait_for_output("waits up to 200 s for devices: ")
    steps = len(first.steps())
    assert "starting" not in waiting.output
    first.wait_for_steps(steps + 1)
    line.begins()
    first.signal(signal.SIGKILL)
    waiting.wait_for_output("starting")
    line.ends("the other run starts on them")
    assert waiting.end(400) == 0, waiting.output
    for name in ("beside", "other"):
        verified(first.folder / name)


def test_an_explorer_that_starts_when_a_node_has_joined_finds_it(launch, nodes):
    apart = ("max_steps=100000", *OVERRIDES, "member_timeout=60")
    trainer = launch(*apart, "mode=train", "num_nodes=2", "actor_train.device_mapping=0-1", *TRAINERS[3:], local=False)
    explorer = launch(*apart, "mode=explore", "actor_infer.device_mapping=0", local=False)
    trainer.wait_for_steps(1, 400)
    later = (*apart, "mode=explore", "actor_infer.device_mapping=0", "explorer_name=later", "device_timeout=1")
    said = refused(launch(*later, local=False))
    assert f"{trainer.dir} (mode train, process {trainer.process.pid} on " in said
    assert f"{trainer.dir}/explorers/explorer (mode explore, process {explorer.process.pid} on " in said
    joined = nodes.add(num_cpus=2)
    second = launch(*later, local=False)
    second.wait_for("engine of the second", lambda: "actor_infer is ready" in second.output, 240)
    assert joined in nodes.of_workers("actor_infer-0") and len(nodes.of_workers("actor_infer-0")) == 2
