"""Which device each process is given where there are accelerators; none is needed to say so."""

from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from roll.core.distributed.devices import Inventory, place
from roll.core.workers.train_interface import RankContext
from roll.strategies.infer.sglang.arguments import server_arguments
from roll.strategies.infer.sglang.server import server_environment
from roll.strategies.infer.vllm.process import engine_environment
from roll.strategies.train.process import init_process_group

FOUR = Inventory("cuda", nodes=1, per_node=4, cpus_per_node=8)


@pytest.mark.parametrize(("seen", "given"), [(None, "1,3"), ("4,5,6,7", "5,7"), ("GPU-a,GPU-b,GPU-c,GPU-d", "GPU-b,GPU-d")])
def test_engines_in_processes_of_their_own_see_their_devices_alone(monkeypatch, seen, given):
    """Devices that do not follow each other, of a process that sees several."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if seen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    devices = ["cuda:1", "cuda:3"]
    assert engine_environment(devices, 1, {}, Path("/tmp"))["CUDA_VISIBLE_DEVICES"] == given
    assert server_environment(devices, 1, Path("/tmp"))["CUDA_VISIBLE_DEVICES"] == given
    sizes = {"seed": 0, "max_length": 8, "max_running_requests": 1, "version": 0}
    arguments = server_arguments("/model", {}, devices=devices, dtype="bfloat16", **sizes)
    assert (arguments["device"], arguments["base_gpu_id"], arguments["tp_size"]) == ("cuda", 0, 2), "counted from its own first"


def test_ray_does_not_hide_the_devices_of_a_worker(monkeypatch):
    """Workers reserve none of Ray's GPUs: roles share devices."""
    ray_backend = pytest.importorskip("roll.platform.ray_backend")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    env = ray_backend.RayBackend(FOUR)._environment(place((2, 3), FOUR)[1])
    assert (env["CUDA_VISIBLE_DEVICES"], env["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"]) == ("7", "0")
    assert "CUDA_VISIBLE_DEVICES" not in ray_backend.RayBackend(Inventory("cpu", 1, 2, 2))._environment(place((0,), FOUR)[0])


@pytest.mark.parametrize(("device", "backend", "bound"), [("cuda:1", "nccl", "cuda:1"), ("cpu", "gloo", None)])
def test_nccl_is_bound_to_the_device_of_the_rank(monkeypatch, device, backend, bound):
    made = {}
    monkeypatch.setattr(dist, "init_process_group", lambda name, **options: made.update(name=name, **options))
    init_process_group(RankContext(), torch.device(device), timedelta(seconds=7))
    assert (made["name"], made["device_id"]) == (backend, None if bound is None else torch.device(bound))
    assert made["timeout"] == timedelta(seconds=7)
