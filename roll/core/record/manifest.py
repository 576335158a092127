"""The manifest of a checkpoint: its files, with a hash of each, and the run that wrote it.

A folder is a checkpoint if its files are those of its manifest, no fewer, no more, none changed. A manifest is text that anybody
may have edited, so all of its contents are checked, and an error is reported in one line.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from roll.core.errors import CheckpointError, boundary
from roll.core.record.journal import sync

MANIFEST = "manifest.json"
LARGEST_BYTES = 1 << 28
"""The largest JSON file, in bytes, that is read whole."""
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    step: int
    token: int
    """Token of the run that wrote the checkpoint (`RunLock`); 0 if there was no lock."""
    files: dict[str, str]
    """Path relative to the folder -> SHA-256."""


def seal(folder: Path, step: int, token: int) -> None:
    """Writes the manifest of all files in the folder and syncs everything to disk."""
    hashes = {name: _sha256(folder / name) for name in sorted(_files(folder))}
    (folder / MANIFEST).write_text(json.dumps({"step": step, "token": token, "files": hashes}, indent=1))
    for name in (*hashes, MANIFEST):
        sync(folder / name)
    for below, _, _ in os.walk(folder, topdown=False):
        sync(Path(below))


def read_manifest(folder: Path) -> CheckpointManifest:
    """Reads the manifest. Raises `CheckpointError`, with the reason alone."""
    if not (folder / MANIFEST).is_file():
        raise CheckpointError(f"it has no {MANIFEST}" if folder.is_dir() else "there is no such folder")
    found = read_json(folder / MANIFEST)
    if not isinstance(found, dict):
        raise CheckpointError(f"{MANIFEST} holds a {type(found).__name__}, not an object")
    step, token, files = found.get("step"), found.get("token"), found.get("files")
    for name, number in (("step", step), ("token", token)):
        if not is_count(number):
            raise CheckpointError(f"{MANIFEST}: {name} is {shown(number)}, not a whole number from 0")
    if not isinstance(files, dict) or not files:
        raise CheckpointError(f"{MANIFEST}: files is {shown(files)}, not an object that names the files")
    for name, digest in files.items():
        if not _is_inside(name) or not isinstance(digest, str) or not _HASH.fullmatch(digest):
            raise CheckpointError(f"{MANIFEST}: {shown(name)}: {shown(digest)} is not a file of the folder and its SHA-256")
    assert isinstance(step, int) and isinstance(token, int)
    return CheckpointManifest(step, token, files)


def verify(folder: Path, manifest: CheckpointManifest, part: str = "") -> None:
    """Raises `CheckpointError` if the folder does not match its manifest. `part`: prefix of the names of the files to check."""
    found = {name for name in _files(folder) if name.startswith(part)}
    for name, digest in manifest.files.items():
        if not name.startswith(part):
            continue
        if not (folder / name).is_file():
            raise CheckpointError(f"file {name} is missing")
        if _sha256(folder / name) != digest:
            raise CheckpointError(f"file {name} is not what was saved (hash differs)")
    if unknown := sorted(found - manifest.files.keys()):
        raise CheckpointError(f"file {unknown[0]} is not in {MANIFEST}")


def read_json(path: Path) -> Any:
    """Returns the value of a JSON file. Raises `CheckpointError` if the file cannot be read as JSON."""
    if (size := path.stat().st_size) > LARGEST_BYTES:
        raise CheckpointError(f"{path.name} has {size} bytes, more than {LARGEST_BYTES}")
    return parsed(path.read_bytes(), path.name)


def parsed(text: bytes, name: str) -> Any:
    with boundary(CheckpointError, f"{name} is not JSON", say=lambda error: shown(str(error))):
        return json.loads(text)


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def shown(value: object) -> str:
    """Renders a value for a message of one line."""
    if isinstance(value, dict | list):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return "a huge number"
    text = value if isinstance(value, str) else json.dumps(value)
    text = " ".join(text.split()).encode(errors="replace").decode()
    return text if len(text) <= 120 else text[:117] + "..."


def _files(folder: Path) -> set[str]:
    """Returns all files but the manifest itself."""
    found = {os.path.relpath(os.path.join(below, name), folder) for below, _, names in os.walk(folder) for name in names}
    return found - {MANIFEST}


def _is_inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and "\0" not in name


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
