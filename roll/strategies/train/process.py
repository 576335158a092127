"""Settings that a training process makes once, before its model is built: device, cores, seeds, determinism, number type, and
torch's default process group of the role's ranks."""

from __future__ import annotations

import atexit
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from roll.core.workers.train_interface import RankContext
from roll.platform.cores import Cores
from roll.platform.ports import join_store, open_store
from roll.platform.process_setup import warn_if_not_deterministic


def prepare_process(context: RankContext, device: torch.device) -> Cores:
    """The rank's place among those that share the cores. It computes until it says that it waits."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.manual_seed(context.seed + context.rank)
    if context.deterministic:
        warn_if_not_deterministic()
        torch.use_deterministic_algorithms(True)
    return Cores(context.threads, borrows=context.borrows_cores)


def follow_cores(model: nn.Module, cores: Cores) -> None:
    """Updates the number of threads from layer to layer, forwards and backwards."""

    def after(layer: nn.Module, given: object, output: object) -> None:
        cores.follow()
        hidden = output[0] if isinstance(output, tuple) else output
        if isinstance(hidden, Tensor) and hidden.requires_grad:
            hidden.register_hook(lambda gradient: cores.follow())

    for module in model.modules() if cores.borrows else ():
        if isinstance(module, GradientCheckpointingLayer):
            module.register_forward_hook(after)


def init_process_group(context: RankContext, device: torch.device, timeout: timedelta) -> None:
    """Starts the default process group: NCCL on GPUs, gloo elsewhere. Rank 0 listens on `master_addr`; a single rank listens
    nowhere. NCCL connects right away, on this device: later it would guess one, and a rank that cannot be reached would be found
    in the middle of the first step."""
    store: Any
    if context.world_size == 1:
        store = dist.HashStore()  # type: ignore[attr-defined]
        atexit.register(_leave_group)  # there is nobody whom this could wait for
    else:
        find = open_store if context.rank == 0 else join_store
        store = find(context.master_addr, context.master_port, timeout)
    backend, bound = ("nccl", device) if device.type == "cuda" else ("gloo", None)
    size = context.world_size
    dist.init_process_group(backend, store=store, rank=context.rank, world_size=size, timeout=timeout, device_id=bound)


def ensure_group_of_one(device: torch.device) -> None:
    """A default group for libraries that do not work without, where no other rank is. It stays for the life of the process: all
    its single-rank roles share it, and DeepSpeed holds on to the first group that it sees."""
    if not dist.is_initialized():
        init_process_group(RankContext(), device, timedelta(minutes=30))


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
