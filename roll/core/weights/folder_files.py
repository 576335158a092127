"""Files of somebody else's Hugging Face folder, read without loading the model: JSON files, and the weight files' headers.

Nothing outside the folder is opened, whatever its files name; only regular files are read, and none of them without a limit.
Every complaint is a `ValueError` (or a `FileNotFoundError`) that names the file.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from roll.core.configs.plain import JsonMapping, JsonObject
from roll.core.data.untrusted import complaint, open_regular, read_regular
from roll.core.errors import boundary

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
VALUE_HEAD = "value_head.safetensors"
"""A critic's, beside its model's own files."""
_OTHER_HEADS = ("v_head.summary.", "score.")
"""Beginnings of a value head's names in files of trl, and of transformers' token and sequence classifiers."""
LARGEST_JSON = 64 << 20
LARGEST_HEADER = 100 << 20
"""Bytes; the safetensors format allows no more."""
_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
_BYTES |= {"I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor, as a header describes it."""

    dtype: str
    shape: tuple[int, ...]


def read_json(path: Path) -> JsonObject:
    """Reads a JSON object. Raises `FileNotFoundError` and `ValueError`."""
    return _object(read_regular(path, LARGEST_JSON), path)


def beyond_context(config: JsonMapping, tokens: int) -> str:
    """Returns a remark on sequences of so many tokens; empty if the model attends to them all, or has no known limit."""
    reach, scaled = config.get("max_position_embeddings"), config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(reach, int) or not isinstance(scaled, dict):
        return ""
    with suppress(KeyError, TypeError, ValueError):
        reach = max(reach, int(scaled["factor"] * scaled["original_max_position_embeddings"]))
    return f"the model was made for {reach:,} (max_position_embeddings)" if tokens > reach else ""


def check_entries(folder: Path) -> None:
    """Raises `ValueError` for a FIFO, a socket or a device among the files: opening it by its name would wait for ever."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.endswith((".json", ".safetensors", ".jinja", ".model", ".txt")) and not entry.is_dir():
            open_regular(Path(entry.path)).close()


def weight_files(folder: Path) -> list[Path]:
    """Returns the files of the model: `model.safetensors`, or those that the index names, or else every *.safetensors.

    Raises `ValueError` for an index that names anything but a safetensors file of this folder, also where it is not needed."""
    named = _indexed(folder)
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    return named or [path for path in sorted(folder.glob("*.safetensors")) if path.name != VALUE_HEAD]


def write_index(folder: Path) -> None:
    """Completes a model folder whose weights several ranks wrote, in files of their own: transformers finds them by the index."""
    files = [] if (folder / WEIGHTS).is_file() else weight_files(folder)
    if files:
        weight_map = {name: path.name for path in files for name in read_header(path)}
        total = sum(path.stat().st_size for path in files)
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2) + "\n")


def value_head(folder: Path) -> dict[str, tuple[Path, str]]:
    """Returns file and name of the `weight` of the folder's value head, and of its `bias`, which not every head has; empty
    without a value head. Raises `ValueError` for a VALUE_HEAD with other contents."""
    own = folder / VALUE_HEAD
    files, prefixes = ([own], ("", *_OTHER_HEADS)) if own.is_file() else (weight_files(folder), _OTHER_HEADS)
    stored = {name: file for file in files for name in read_header(file)}
    for prefix in prefixes:
        if f"{prefix}weight" in stored:
            return {part: (stored[prefix + part], prefix + part) for part in ("weight", "bias") if prefix + part in stored}
    if own.is_file():
        raise ValueError(f"{own} has no value head, but {', '.join(sorted(stored)[:3])}")
    return {}


def stored_tensors(files: list[Path]) -> dict[str, StoredTensor]:
    """Returns all tensors by name. Raises `ValueError` for a damaged header, and for files without any tensor."""
    found: dict[str, StoredTensor] = {}
    for path in files:
        found |= read_header(path)
    if not found:
        raise ValueError(f"{' and '.join(str(path) for path in files[:3]) or 'the folder'}: there is no tensor inside")
    return found


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Reads the header of one safetensors file: 8 bytes of length, little endian, then JSON that maps names to type, shape and
    place."""
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        length = int.from_bytes(stream.read(8), "little")
        if length > LARGEST_HEADER:
            raise ValueError(f"{path} is damaged: its header would have {length:,} bytes")
        if size < 8 + length or not length:
            raise ValueError(f"{path} is damaged: {size:,} bytes, without a whole header")
        header = _object(stream.read(length), path)
    header.pop("__metadata__", None)
    return {name: _stored(path, name, entry, size - 8 - length) for name, entry in header.items()}


def beginning(files: Sequence[Path], name: str, most: int = 1 << 20) -> bytes:
    """Returns the first bytes of a tensor, which is in one of the files. Raises as `read_header`."""
    path = next(path for path in files if name in read_header(path))
    with open_regular(path) as stream:
        length = int.from_bytes(stream.read(8), "little")
        start, stop = _object(stream.read(length), path)[name]["data_offsets"]
        stream.seek(8 + length + start)
        return stream.read(min(most, stop - start))


def _stored(path: Path, name: str, entry: Any, room: int) -> StoredTensor:
    try:
        dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path} is damaged: its header does not list tensors") from None
    numbers = [*shape, start, stop]
    if not isinstance(dtype, str) or any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError(f"{path} is damaged: tensor {name!r} has no type, shape and place")
    known = dtype in _BYTES
    if start > stop or stop > room or (known and stop - start != prod(shape) * _BYTES[dtype]):
        raise ValueError(f"{path} is damaged: tensor {name!r} does not lie inside the file, or not in its size")
    return StoredTensor(dtype, shape)


def _indexed(folder: Path) -> list[Path]:
    """Returns the files that the index names; none without an index."""
    path = folder / INDEX
    if not os.path.lexists(path):
        return []
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{path} has no weight_map")
    for name in weight_map.values():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise ValueError(f"{path} names {str(name)[:100]!r}, which is not a *.safetensors file of its folder")
    files = [folder / name for name in sorted(set(weight_map.values()))]
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"{path} names {file.name}, which is not there")
    return files


def _said(error: BaseException) -> str:
    return "it is nested too deep" if isinstance(error, RecursionError) else str(error)


def _object(content: bytes, path: Path) -> JsonObject:
    with boundary(ValueError, f"{path} cannot be read", say=_said):
        value = json.loads(content)
    if not isinstance(value, dict):
        raise ValueError(f"{path} cannot be read: it is not a mapping")
    if wrong := complaint(value):
        raise ValueError(f"{path} cannot be read: a value {wrong}")
    return value


def share_like(example: Path, folder: Path) -> None:
    """Gives every file of the folder the mode of `example`, a file opened in the ordinary way: safetensors leaves files that only
    their owner can read."""
    mode = stat.S_IMODE(example.stat().st_mode)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)
