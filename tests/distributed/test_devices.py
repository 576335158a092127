import pytest

from roll.core.distributed.devices import Inventory, detect, place, place_on_cpus
from roll.platform.visible_devices import only

TWO_NODES = Inventory("cuda", nodes=2, per_node=4, cpus_per_node=16)


def test_global_indices_are_placed_on_their_node():
    placements = place((3, 4, 7), TWO_NODES)
    assert [(p.rank, p.node, p.local_devices) for p in placements] == [(0, 0, (3,)), (1, 1, (0,)), (2, 1, (3,))]
    assert {p.world_size for p in placements} == {3}


def test_a_worker_of_several_devices_stays_on_one_node():
    assert [p.devices for p in place((0, 1, 2, 3), TWO_NODES, 2)] == [(0, 1), (2, 3)]
    with pytest.raises(ValueError, match=r"would span nodes \[0, 1\]"):
        place((3, 4), TWO_NODES, 2)


def test_cpu_slots_share_the_threads():
    laptop = Inventory("cpu", nodes=1, per_node=2, cpus_per_node=8)
    assert [p.threads for p in place((0, 1), laptop)] == [4, 4]
    assert place((0,), Inventory("cpu", 1, 4, 2))[0].threads == 1


@pytest.mark.parametrize(("given", "threads"), [("3", 3), ("4,2", 4), ("0", None), ("all", None), ("", None)])
def test_a_worker_has_as_many_threads_as_the_user_says(monkeypatch, given, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = detect(per_node=2)
    assert found.threads == threads
    assert place((0,), found)[0].threads == (threads or max(1, found.cpus_per_node // 2))


def test_roles_without_devices_go_round_the_nodes():
    assert [p.node for p in place_on_cpus(3, TWO_NODES)] == [0, 1, 0]


@pytest.mark.parametrize(
    ("devices", "seen", "said"),
    [
        ((0, 2), "4,5, 6,7", "4,6"),
        (("cuda:1",), "GPU-aa,GPU-bb", "GPU-bb"),
        ((0, 2), None, "0,2"),
        (("cuda:0", "cuda:2"), "", "0,2"),
    ],
)
def test_a_process_is_given_the_devices_that_its_parent_may_see(monkeypatch, devices, seen, said):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if seen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    assert only(devices) == {"CUDA_VISIBLE_DEVICES": said}
