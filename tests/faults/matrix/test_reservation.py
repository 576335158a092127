"""Runs that share a Ray cluster take devices that no other holds; with a real cluster of nodes that say they have GPUs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from ray_cluster import ray_cluster

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PLACES = (HERE, ROOT / "tests/distributed", ROOT)
QUICK = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
"""Ray knows within some seconds that a node is gone."""

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(240)]


def descendants(pid):
    return {child.pid: "" for child in psutil.Process(pid).children(recursive=True)}


@pytest.fixture
def cluster(monkeypatch):
    """A head without GPUs, and a node of two."""
    with ray_cluster(monkeypatch, PLACES, descendants, [{"num_cpus": 2}, {"num_cpus": 2, "num_gpus": 2}], **QUICK) as nodes:
        yield nodes


class Driver:
    def __init__(self, who, nodes, per_node, devices, within_s=1):
        command = [sys.executable, HERE / "reserving_driver.py", *map(str, (who, nodes, per_node, devices, within_s))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=dict(os.environ), text=True, **pipes)

    def says(self):
        line = next((line for line in self.process.stdout if line.startswith("{")), None)
        assert line, self.process.communicate()
        return json.loads(line)

    def waits(self):
        """What it says while it waits."""
        return next(line for line in self.process.stderr if line.startswith("waits "))

    def starts_again(self):
        self.process.stdin.write("again\n")
        self.process.stdin.flush()
        return self.says()

    def gpus(self):
        """Node and GPU of each device, of which both roles say the same."""
        places = [tuple(place[:2]) for place in self.says()["places"]]
        one, other = places[: len(places) // 2], places[len(places) // 2 :]
        assert one == other
        return one

    def end(self):
        assert self.process.communicate(timeout=60) and self.process.returncode == 0


@pytest.fixture
def driver():
    started = []

    def start(*arguments):
        started.append(Driver(*arguments))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


def test_runs_side_by_side_one_too_many_and_one_after_another_was_killed(cluster, driver):
    node = cluster.ids[cluster.alive[1]]
    first, second = driver("first", 1, 1, "0"), driver("second", 1, 2, "1")
    taken = first.gpus() + second.gpus()
    assert sorted(taken) == [(node, "0"), (node, "1")], "each counts from 0, or leaves devices to others: none is taken twice"
    (refused,) = driver("third", 1, 1, "0").says().values()
    assert "device_timeout = 1.0: the run needs 1 GPU on a node, and 0 of 2 are free in the Ray cluster: " in refused
    assert "first holds 1 on " in refused and "second holds 1 on " in refused

    waiting = driver("fourth", 1, 1, "0", 60)
    assert "waits up to 60 s for devices: " in waiting.waits()
    first.process.send_signal(signal.SIGKILL)
    assert waiting.gpus() == [taken[0]]
    second.end()
    assert driver("fifth", 1, 2, "0", 1).gpus() == [taken[1]], "what has ended holds nothing"


def test_a_node_that_joins_is_found_by_who_waits_and_by_who_starts_later(cluster, driver):
    assert len(driver("first", 1, 2, "0,1").gpus()) == 2
    waiting = driver("second", 1, 2, "0,1", 60)
    waiting.waits()
    joined = cluster.ids[cluster.add(num_cpus=2, num_gpus=4)]
    assert sorted(waiting.gpus()) == [(joined, "0"), (joined, "1")]
    assert sorted(driver("third", 1, 2, "0,1").gpus()) == [(joined, "2"), (joined, "3")]


def test_the_devices_of_a_lost_node_are_reserved_on_a_spare_one(cluster, driver):
    for _ in range(2):
        cluster.add(num_cpus=2, num_gpus=2)
    beside = driver("beside", 1, 2, "0")
    ((spare, _),) = beside.gpus()
    run = driver("run", 2, 2, "0,1,2,3")
    places = run.gpus()
    lost = places[2][0]
    cluster.kill(next(raylet for raylet, node in cluster.ids.items() if node == lost))
    answer = run.starts_again()
    assert "node 1 of the run, " in answer["lost"] and "the cluster has no other for it" in answer["lost"]
    beside.end()
    while "lost" in (said := run.starts_again()):  # until Ray has given up the reservation of the other
        pass
    assert {tuple(place[:2]) for place in said["places"]} == {*places[:2], (spare, "0"), (spare, "1")}


def test_slots_of_cpus_are_parts_of_nodes(monkeypatch, driver):
    with ray_cluster(monkeypatch, PLACES, descendants, [{"num_cpus": 4}, {"num_cpus": 4}]) as nodes:
        head, node = (nodes.ids[raylet] for raylet in nodes.alive)
        first = driver("first", 1, 2, "0")
        assert first.says()["places"] == [[head, None, "2"]] * 2, "the driver's node, while it has room"
        assert driver("second", 1, 1, "0").says()["places"] == [[node, None, "4"]] * 2
        (refused,) = driver("third", 1, 4, "0,1,2").says().values()
        assert "the run needs 3 CPU on a node, and 2 of 8 are free" in refused
        assert driver("fourth", 1, 4, "2,3").says()["places"] == [[head, None, "1"]] * 4


def test_nodes_that_have_not_joined_yet_are_waited_for(monkeypatch, driver):
    with ray_cluster(monkeypatch, PLACES, descendants, [{"num_cpus": 2}]) as nodes:
        (refused,) = driver("first", 2, 1, "0,1").says().values()
        assert "num_nodes = 2: the Ray cluster has 1 live nodes; fix: " in refused
        waiting = driver("second", 2, 1, "0,1", 60)
        assert "num_nodes = 2: the Ray cluster has 1 live nodes" in waiting.waits()
        nodes.add(num_cpus=2)
        assert [place[0] for place in waiting.says()["places"][:2]] == [nodes.ids[raylet] for raylet in nodes.alive]
