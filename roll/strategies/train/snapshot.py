"""What a rank keeps of one moment of its training, in host memory of its own: a checkpoint is written from it while the next
steps change the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from roll.strategies.train import checkpoint_files as files

Named = Iterable[tuple[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    rank: int
    weights: dict[str, Tensor]
    """The whole model in its master precision, on rank 0 alone."""
    moments: dict[str, Tensor]
    """`<parameter>.<moment>` of AdamW, whole, on rank 0 alone; nothing before the first step."""
    rng: dict[str, Tensor]
    state: files.TrainerState | None
    """None for a frozen model."""

    @classmethod
    def take(cls, rank: int, device: torch.device, weights: Named, moments: Named, state: files.TrainerState | None) -> Snapshot:
        """`weights`, `moments`: whole tensors, gathered one at a time while they are asked for; every rank asks for all."""
        kept = rank == 0
        held = _copies(weights, kept), _copies(moments, kept)
        return cls(rank, *held, files.rng_state(device), None if state is None else replace(state))

    def write_training(self, directory: Path, moments: dict[str, Tensor]) -> None:
        """Writes all files but the model's. `moments`: those of the snapshot, under the names that they are saved under."""
        if self.state is None:
            return
        if self.rank == 0:
            save_file(moments, directory / files.OPTIMIZER)
            self.state.write(directory / files.TRAINER)
        save_file(self.rng, files.rng_path(directory, self.rank))


def _copies(named: Named, kept: bool) -> dict[str, Tensor]:
    copies = {}
    for name, tensor in named:
        if kept:
            copies[name] = tensor.detach().to("cpu", copy=True).contiguous()
    return copies
