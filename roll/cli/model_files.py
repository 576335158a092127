"""What a Hugging Face folder says of its model without loading it: `config.json`, and the headers of its weight files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

LARGEST_HEADER = 100 << 20
"""Bytes; the safetensors format allows no more."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    config: dict[str, Any] | None
    """Content of `config.json`; None if there is none that can be read."""
    stored_parameters: int | None
    """Numbers in all *.safetensors files; None without such files."""
    note: str
    """What is missing or unreadable; empty if nothing is."""


def read_model_folder(folder: str) -> ModelFiles:
    """Never raises for what lies in the folder: what is wrong with it stands in the note."""
    root = Path(folder)
    if not root.is_dir():
        return ModelFiles(None, None, f"{folder} is not there")
    try:
        config = json.loads((root / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ModelFiles(None, None, f"{folder} has no config.json")
    except (OSError, ValueError) as error:
        return ModelFiles(None, None, f"{folder}/config.json cannot be read: {error}")
    if not isinstance(config, dict):
        return ModelFiles(None, None, f"{folder}/config.json cannot be read: it is no mapping")
    try:
        counts = [_stored(file) for file in sorted(root.glob("*.safetensors"))]
    except (OSError, ValueError) as error:
        return ModelFiles(config, None, f"{error}; parameters are counted by formula")
    missing = "" if counts else f"{folder} has no *.safetensors; parameters are counted by formula"
    return ModelFiles(config, sum(counts) if counts else None, missing)


def _stored(file: Path) -> int:
    """Numbers in one file: its header maps names to shapes (8 bytes of length, little endian, then JSON)."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > LARGEST_HEADER:
            raise ValueError(f"{file} is damaged: its header would have {length:,} bytes")
        header = json.loads(stream.read(length))
    try:
        return sum(prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged: its header does not list tensors") from error
