"""The devices there are, and where each worker of a role goes. Placement is pure; only `detect` looks at the machine."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

from roll.core.configs.problems import ConfigError, Problem
from roll.core.distributed.machine import given_threads, this_machine


@dataclass(frozen=True, slots=True)
class Inventory:
    """Global device index `i` is device `i % per_node` of node `i // per_node`. Without accelerators a device is a CPU slot."""

    kind: Literal["cuda", "cpu"]
    nodes: int
    per_node: int
    cpus_per_node: int
    threads: int | None = None
    """Of each worker, if the user sets them, on CPUs: beside accelerators the variable is often the launcher's."""

    @property
    def count(self) -> int:
        return self.nodes * self.per_node

    @property
    def threads_per_device(self) -> int:
        return max(1, self.cpus_per_node // self.per_node)


def detect(nodes: int = 1, per_node: int | None = None) -> Inventory:
    """The devices of this machine, `nodes` times. Without accelerators there are as many CPU slots as cores (at least two, so
    that training and rollouts can be apart), or `per_node` of them. Raises `ConfigError` if torch cannot use accelerators that
    are there: a run would be on CPUs, silently and for ever."""
    import torch  # the processes of rewards need no more of this file than a placement, and are smaller and sooner there without

    machine, usable, why = this_machine(), *_usable()
    if usable:
        return Inventory("cuda", nodes, per_node or usable, machine.cpus)
    if machine.accelerators:
        message = f"can use none of the {len(machine.accelerators)} accelerators of this machine: {why}"
        fix = "install a torch for this driver (roll doctor), or set CUDA_VISIBLE_DEVICES= to run on CPUs"
        raise ConfigError([Problem("torch", torch.__version__, message, fix)])
    return Inventory("cpu", nodes, per_node or max(2, machine.cpus), machine.cpus, given_threads())


def _usable() -> tuple[int, str]:
    """Returns the number of accelerators that torch can use, and its reason if it can use none. Creates no context on them."""
    import torch

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    built = "" if torch.version.cuda else "it is built without CUDA"
    return count, built or " ".join(str(warning.message) for warning in said) or "it does not say why"


@dataclass(frozen=True, slots=True)
class Placement:
    """One worker: its data-parallel rank in the role, its devices (global indices; none for a CPU role) and its node."""

    rank: int
    world_size: int
    devices: tuple[int, ...]
    node: int
    local_devices: tuple[int, ...]
    """The devices' indices on their node."""
    threads: int


def place(
    device_mapping: tuple[int, ...], inventory: Inventory, devices_per_worker: int = 1, at_once: int = 1
) -> list[Placement]:
    """Places one worker on each `devices_per_worker` consecutive entries of the mapping. `at_once`: number of workers that divide
    the threads of a device."""
    groups = [device_mapping[i : i + devices_per_worker] for i in range(0, len(device_mapping), devices_per_worker)]
    placements = []
    for rank, devices in enumerate(groups):
        nodes = {index // inventory.per_node for index in devices}
        if len(nodes) > 1:
            raise ValueError(f"worker {rank} would span nodes {sorted(nodes)}: devices {list(devices)} must be on one node")
        local = tuple(index % inventory.per_node for index in devices)
        threads = inventory.threads or max(1, inventory.threads_per_device * len(devices) // at_once)
        placements.append(Placement(rank, len(groups), tuple(devices), nodes.pop(), local, threads))
    return placements


def place_on_cpus(world_size: int, inventory: Inventory) -> list[Placement]:
    """Places workers that need no device (rewards, environments), round-robin over the nodes, one thread each."""
    return [Placement(rank, world_size, (), rank % inventory.nodes, (), 1) for rank in range(world_size)]
