"""What a run wants of a Ray cluster, and who has it: on lists as `ray.nodes()` and `placement_group_table()` give them."""

import signal

import pytest
from ray._private import utils as ray_utils
from ray.exceptions import RayActorError

from roll.core.configs.problems import ConfigError
from roll.core.distributed.devices import Inventory
from roll.platform import ray_nodes
from roll.platform.process_setup import forwarded
from roll.platform.ray_backend import RayBackend
from roll.platform.ray_nodes import bundle, bundles_of_nodes, cluster_inventory, holders, live_nodes, without_devices
from roll.platform.ray_says import death


def node(name, address, alive=True, **resources):
    return {"NodeID": name, "NodeManagerAddress": address, "Alive": alive, "Resources": {"CPU": 8.0, **resources}}


HEAD = node("zz", "10.0.0.1")
LISTED = [
    node("bb", "10.0.0.3", GPU=8.0, CPU=64.0),
    HEAD,
    node("aa", "10.0.0.4", GPU=4.0, CPU=32.0),
    node("cc", "10.0.0.2", GPU=8.0, CPU=96.0),
    node("dd", "10.0.0.5", alive=False, GPU=8.0),
]


def test_a_driver_without_gpus_does_not_make_the_cluster_one_of_cpus():
    nodes = live_nodes(LISTED, own="zz")
    assert [each.id for each in nodes] == ["zz", "cc", "bb", "aa"], "the driver's own, then by address"
    found = cluster_inventory(nodes, 2, None)
    assert (found.kind, found.nodes, found.per_node, found.cpus_per_node) == ("cuda", 2, 8, 64)
    half = cluster_inventory(nodes, 2, 4)
    assert (half.per_node, half.cpus_per_node) == (4, 32), "others may use the other GPUs, and the CPUs that go with them"


def test_the_drivers_node_is_the_first_if_it_has_what_the_others_have():
    nodes = live_nodes(LISTED, own="bb")
    assert [each.id for each in nodes] == ["bb", "zz", "cc", "aa"]
    assert cluster_inventory(nodes, 3, None).per_node == 4, "as many as all of them have"
    assert cluster_inventory(nodes, 3, 2).per_node == 2


def test_too_few_nodes_with_the_devices_are_refused_by_number():
    with pytest.raises(ConfigError, match="num_nodes = 3: the Ray cluster has 2 live nodes with 8 accelerators or more"):
        cluster_inventory(live_nodes(LISTED, own="zz"), 3, 8)


def test_a_cluster_without_gpus_has_slots_of_cpus_and_its_head_counts():
    nodes = live_nodes([node("b", "10.0.0.2", CPU=4.0), node("a", "10.0.0.1", CPU=2.0)], own="b")
    found = cluster_inventory(nodes, 2, None)
    assert (found.kind, found.per_node, found.cpus_per_node) == ("cpu", 2, 2)
    with pytest.raises(ConfigError, match="the Ray cluster has 2 live nodes"):
        cluster_inventory(nodes, 3, None)


def test_what_needs_no_device_goes_where_the_run_has_some_while_that_is_there():
    head, cc, bb, aa = live_nodes(LISTED, own="zz")
    assert [without_devices([cc, bb], number, [head, cc, bb, aa]) for number in range(3)] == [cc, bb, cc]
    assert without_devices([cc, bb], 1, [head, cc, aa]) == cc
    assert without_devices([cc, bb], 0, [head, aa]) == head


def test_a_run_reserves_the_devices_that_its_roles_name_and_a_slot_of_cpus_is_its_part_of_the_node():
    gpus, slots = Inventory("cuda", 2, 8, 64), Inventory("cpu", 1, 4, 6)
    assert bundle(5, gpus) == {"GPU": 5}
    assert [bundle(count, slots) for count in (1, 4)] == [{"CPU": 1.5}, {"CPU": 6.0}]
    assert bundle(1, Inventory("cpu", 1, 3, 1)) == {"CPU": 0.3333}, "more slots than CPUs"


def test_of_equal_nodes_the_first_has_the_first_number():
    assert bundles_of_nodes([4, 4, 4], [2, 0, 1]) == [1, 2, 0]
    assert bundles_of_nodes([4, 2, 4], [3, 0, 1]) == [2, 1, 0], "what was reserved for two devices has no room for four"


def test_who_holds_devices_is_told_by_name_number_and_node():
    nodes = live_nodes(LISTED, own="zz")

    def group(name, state, *places):
        bundles, places = {i: taken for i, (taken, _) in enumerate(places)}, {i: node for i, (_, node) in enumerate(places)}
        return {"name": name, "state": state, "bundles": bundles, "bundles_to_node_id": places}

    table = [
        group("out/one (mode both)", "CREATED", ({"GPU": 4.0}, "cc"), ({"GPU": 2.0}, "bb")),
        group("out/two", "PENDING", ({"GPU": 8.0}, "")),
        group("out/three", "REMOVED", ({"GPU": 8.0}, "cc")),
        group("", "CREATED", ({"CPU": 1.0, "GPU": 1.0}, "aa")),
        group("a server", "CREATED", ({"CPU": 1.0}, "zz")),
    ]
    assert holders(table, nodes, "GPU") == [
        "out/one (mode both) holds 4 on 10.0.0.2, 2 on 10.0.0.3",
        "a placement group without a name holds 1 on 10.0.0.4",
    ]
    assert holders(table, nodes, "CPU")[1:] == ["a server holds 1 on 10.0.0.1"]


def test_a_ray_of_the_runs_own_is_one_node(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match=r"num_nodes = 2: the run has a Ray of its own .*RAY_ADDRESS=<head>:6379"):
        RayBackend().devices(2, None)


def test_sigterm_while_ray_starts_is_the_runs(monkeypatch):
    """Ray would answer it with an exit, wherever the start just is."""
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("the run"))

    def start():
        ray_utils.set_sigterm_handler(lambda *_: heard.append("Ray"))
        signal.raise_signal(signal.SIGTERM)

    backend = RayBackend()
    monkeypatch.setattr(backend._ray, "start", start)
    monkeypatch.setattr("roll.platform.ray_nodes.now_live", list)
    try:
        backend._connect()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == ["the run"]


def test_a_worker_that_could_not_be_made_says_what_failed():
    """Ray tells it in the last line of a traceback, as where the worker's class cannot be loaded."""
    said = "The actor died because of an error raised in its creation task, ray::role-0\n  File x\nModuleNotFoundError: no x\n"
    assert str(death("role-0", RayActorError(error_msg=said))) == "worker role-0 died: ModuleNotFoundError: no x"
    said = "The actor is dead.\n\tWorker exit type: SYSTEM_ERROR. Killed by signal 9"
    assert "Killed by signal 9" in str(death("role-0", RayActorError(error_msg=said)))


def test_what_tunes_the_libraries_goes_along_and_secrets_do_not():
    tuned = {"NCCL_SOCKET_IFNAME": "eth1", "GLOO_SOCKET_IFNAME": "eth1", "VLLM_USE_V1": "1", "HF_HUB_OFFLINE": "1"}
    kept_here = {"HF_TOKEN": "hf_x", "VLLM_API_KEY": "x", "PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0", "DS_ACCELERATOR": "cpu"}
    assert forwarded(tuned | kept_here) == tuned


@pytest.mark.parametrize(("accelerators", "threads"), [(0, 3), (8, None)])
def test_the_threads_that_the_user_sets_count_on_cpus(monkeypatch, accelerators, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr(
        ray_nodes, "now_live", lambda: live_nodes([node("a", "10.0.0.1", GPU=accelerators, CPU=64.0)], "10.0.0.1")
    )
    assert ray_nodes.joined_inventory(1, None, 0).threads == threads
