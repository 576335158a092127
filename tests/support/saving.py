"""A checkpoint's part of one rank, written at once or later."""

from __future__ import annotations

from pathlib import Path

from roll.strategies.train.interface import Checkpointed


def save(strategy: Checkpointed, folder: Path) -> None:
    strategy.write(strategy.snapshot(), folder)


def contents(folder: Path) -> dict[str, bytes]:
    """All files below the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
