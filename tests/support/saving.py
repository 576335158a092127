"""A checkpoint's part of one rank, written at once or later."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor

from roll.core.weights.folder_files import write_index
from roll.core.workers.train_interface import Checkpointed
from roll.strategies.train.checkpoint_files import Snapshot


def save(strategy: Checkpointed, folder: Path) -> None:
    write(strategy, strategy.snapshot(), folder)


def write(strategy: Checkpointed, snapshot: Snapshot, folder: Path) -> None:
    """A rank's part; when all ranks are done the folder is complete."""
    strategy.write(snapshot, folder)
    if dist.is_initialized():
        dist.barrier()
    if snapshot.files_of.first:
        write_index(folder / "model")
    if dist.is_initialized():
        dist.barrier()


def saved(folder: Path, stem: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint's files, of however many ranks."""
    return {name: tensor for path in folder.glob(f"{stem}*.safetensors") for name, tensor in load_file(path).items()}


def contents(folder: Path) -> dict[str, bytes]:
    """All files below the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
