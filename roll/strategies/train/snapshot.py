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
from roll.strategies.train.tensor_files import FilesOf

Named = Iterable[tuple[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    files_of: FilesOf
    weights: dict[str, Tensor]
    """This rank's share of the model's tensors, each whole and in its master precision."""
    moments: dict[str, Tensor]
    """This rank's share of AdamW's `<parameter>.<moment>`, each whole; nothing before the first step."""
    rng: dict[str, Tensor]
    state: files.TrainerState | None
    """None for a frozen model."""

    @classmethod
    def take(
        cls,
        files_of: FilesOf,
        share: Share,
        device: torch.device,
        weights: Named,
        moments: Named,
        state: files.TrainerState | None,
    ) -> Snapshot:
        """`weights`, `moments`: whole tensors, gathered one at a time while they are asked for; every rank asks for all."""
        held = share.copies(weights), share.copies(moments)
        return cls(files_of, *held, files.rng_state(device), None if state is None else replace(state))

    def write_training(self, directory: Path, moments: dict[str, Tensor]) -> None:
        """Writes all files but the model's. `moments`: those of the snapshot, under the names that they are saved under."""
        if self.state is None:
            return
        if moments:
            save_file(moments, directory / self.files_of.named(files.OPTIMIZER))
        if self.files_of.first:
            self.state.write(directory / files.TRAINER)
        save_file(self.rng, files.rng_path(directory, self.files_of.rank))


class Share:
    """Divides tensors that ranks go through together: those of the next layer are for the rank that has the fewest bytes."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank = rank
        self._bytes = [0] * ranks
        self._owners: dict[str, int] = {}

    def copies(self, named: Named) -> dict[str, Tensor]:
        """Copies of this rank's, on the CPU."""
        return {n: tensor.detach().to("cpu", copy=True).contiguous() for n, tensor in named if self._mine(n, tensor)}

    def _mine(self, name: str, tensor: Tensor) -> bool:
        owner = self._owners.setdefault(self._layer(name), self._bytes.index(min(self._bytes)))
        self._bytes[owner] += tensor.nbytes
        return owner == self._rank

    def _layer(self, name: str) -> str:
        return name.rpartition(".")[0]


class AllOnFirst(Share):
    """For tensors that have to be together."""

    def _mine(self, name: str, tensor: Tensor) -> bool:
        return self._rank == 0
