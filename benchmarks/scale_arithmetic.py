"""What limits a run of 7B on 8, of 70B on 64 and of a large mixture of experts on 512 accelerators? Arithmetic, no measurement.

Every rate that goes in stands below with its source or as a guess that is said to be one; what comes out is seconds of a step for
each part, and which part is the longest. The driver's figures were measured (`driver_at_scale.py --quick`, two quiet cores).

    python benchmarks/scale_arithmetic.py
"""

from __future__ import annotations

from dataclasses import dataclass

PEAK = 989e12
"""FLOP/s of an H100 or H200 in bf16, dense, as NVIDIA's data sheet says."""
NODE = 8
LINK, LINKS = 40e9, 8
"""Bytes/s of an InfiniBand adapter of 400 Gb/s, of which 50e9 would be all, a guess of what is left; and adapters of a node."""
RAY = 2e9
"""Bytes/s of an object from node to node; a guess: no two nodes were measured."""
HOST_COPY = 20e9
"""Bytes/s between a device and host memory, each; a guess for pinned memory beside other copies."""
FILE = 3e9
"""Bytes/s that a process writes into new memory: a file of 512 MiB in 0.17 s, on two cores beside other work."""
TOKEN_S, GROUP_S = 0.047e-6, 1.6e-3
"""The driver's processor for a token, and for a group: the larger ones of two runs."""


@dataclass(frozen=True)
class System:
    name: str
    parameters: float
    active: float
    """Of the parameters, for each token."""
    trainers: int
    engines: int
    """Devices of each half."""
    per_engine: int
    groups: int
    responses: int
    """Of a group."""
    tokens: int
    """Of a response, on average."""
    mfu: float
    tokens_per_s: float
    """Of a device of the engines."""

    @property
    def step_tokens(self) -> float:
        return float(self.groups * self.responses * self.tokens)

    @property
    def weight_bytes(self) -> float:
        return 2 * self.parameters

    def generation_s(self) -> float:
        return self.step_tokens / (self.engines * self.tokens_per_s)

    def training_s(self) -> float:
        """Forward, backward, and a forward again to recompute activations."""
        return 8 * self.active * self.step_tokens / (self.trainers * PEAK * self.mfu)

    def driver_s(self) -> float:
        return TOKEN_S * self.step_tokens + GROUP_S * self.groups

    def store_s(self) -> float:
        """An update by `object_store`: each node of engines fetches all buckets."""
        if self.trainers + self.engines <= NODE:
            return self.weight_bytes / HOST_COPY
        return self.weight_bytes / RAY

    def broadcast_s(self) -> float:
        """By `nccl`: to each device of a node at the same time its part, one thing after another: to the sender's device, over an
        adapter, from the receiver's device, into a memory file."""
        across = 0.0 if self.trainers + self.engines <= NODE else 1 / LINK
        return self.weight_bytes / min(NODE, self.engines) * (2 / HOST_COPY + across + 1 / FILE)

    def shares_s(self) -> float:
        """If every rank sent its share to the ranks that need it: what the adapters of a node need for what it holds."""
        return self.weight_bytes * min(1.0, NODE / self.per_engine) / (LINKS * LINK)


SYSTEMS = (
    System("7B on 4 + 4", 7.6e9, 7.6e9, 4, 4, 1, 128, 8, 4_000, 0.40, 10_000),
    System("70B on 32 + 32", 70e9, 70e9, 32, 32, 8, 128, 8, 4_000, 0.40, 625),
    System("671B, 37B active, on 256 + 256", 671e9, 37e9, 256, 256, 16, 256, 16, 8_000, 0.20, 1_850),
)


def table() -> str:
    head = ["", *(system.name for system in SYSTEMS)]
    rows = {
        "samples × tokens of a step": [f"{s.groups * s.responses:,} × {s.tokens:,}" for s in SYSTEMS],
        "generation": [f"{s.generation_s():.0f} s" for s in SYSTEMS],
        "training": [f"{s.training_s():.0f} s" for s in SYSTEMS],
        "driver": [f"{s.driver_s():.1f} s" for s in SYSTEMS],
        "weights": [f"{s.weight_bytes / 1e9:,.0f} GB" for s in SYSTEMS],
        "update by `object_store`": [f"{s.store_s():.0f} s" for s in SYSTEMS],
        "update by `nccl`": [f"{s.broadcast_s():.0f} s" for s in SYSTEMS],
        "an update's bound": ["", *(f"{s.shares_s():.1f} s" for s in SYSTEMS[1:])],
        "longest": [longest(s) for s in SYSTEMS],
        "the driver, of generation and training": [
            f"{s.driver_s() / max(s.generation_s(), s.training_s()):.1%}" for s in SYSTEMS
        ],
    }
    lines = [head, ["---"] * len(head), *([name, *cells] for name, cells in rows.items())]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def longest(system: System) -> str:
    """Of what goes on side by side with `async_generation_ratio` > 0."""
    parts = {
        "generation": system.generation_s(),
        "training": system.training_s(),
        "`object_store`": system.store_s(),
        "driver": system.driver_s(),
    }
    return max(parts, key=parts.__getitem__)


if __name__ == "__main__":
    print(table())
