"""A run that waits for devices of a cluster in vain is told what would leave some."""

import pytest

from roll.core.configs.rlvr import RLVRConfig
from roll.core.distributed.devices import Inventory
from roll.plan.rules.loading import load_config
from roll.platform.ray_nodes import bundle, more_room


def inventory(kind, per_node):
    return Inventory(kind, nodes=1, per_node=per_node, cpus_per_node=8)


def test_a_node_without_gpus_is_divided_by_the_files_of_all_who_share_it():
    whole = inventory("cpu", 1)
    assert bundle(1, whole) == {"CPU": 8}, "one slot is all of it"
    said = more_room([1], whole)
    assert said.startswith("num_gpus_per_node: 2 or more (cluster.gpu_per_node in a file of Trinity-RFT) in the files of all")
    assert "so many slots, now 1, and this run takes its only one" in said and "fewer devices" not in said
    assert bundle(1, inventory("cpu", 2)) == {"CPU": 4}, "as it says"
    assert "num_gpus_per_node: 8 or more" in more_room([2, 2], inventory("cpu", 4))


def test_fewer_devices_are_advised_to_those_who_have_several():
    assert more_room([2], inventory("cuda", 4)) == "fewer devices in device_mapping"
    assert "fewer" not in more_room([1], inventory("cuda", 1))


WAITS = [("both", None, 10), ("explore", None, 600), ("train", None, 600), ("explore", 3, 3)]


@pytest.mark.parametrize(("mode", "given", "seconds"), WAITS)
def test_a_process_that_joins_a_run_waits_for_minutes(mode, given, seconds):
    reward = {"rewards": {"sums": {"worker_cls": "my.Reward"}}, "pretrain": "model"}
    config = load_config(RLVRConfig, {**reward, "mode": mode, "device_timeout": given})
    assert config.waits_for_devices_s == seconds
