"""A folder that a script makes: complete or absent, and made again only if it is not what its settings ask for.

It is written aside and renamed; `manifest.json` (settings and SHA-256 of every file) decides whether it has to be made again.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any


def file_hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def is_current(out: Path, settings: Any) -> bool:
    """True if `out` holds what these settings make, byte for byte as it was written."""
    manifest = out / "manifest.json"
    if not manifest.is_file():
        return False
    content: dict[str, Any] = json.loads(manifest.read_text(encoding="utf-8"))
    return bool(content["settings"] == asdict(settings) and content["files"] == file_hashes(out))


def make_folder(out: Path, settings: Any, build: Callable[[Path, Any], dict[str, float]], force: bool = False) -> Path:
    """Makes the folder `out` unless it is there already; returns it. `settings`: a dataclass, all that the result depends on.
    `build(folder, settings)` fills an empty folder and returns what it measured.

    Raises `FileExistsError` if `out` is a folder that no script made: it is never overwritten."""
    out = Path(out).absolute()
    with _one_maker(out):
        if not force and is_current(out, settings):
            return out
        if out.exists() and not (out / "manifest.json").is_file() and any(out.iterdir()):
            raise FileExistsError(f"{out} exists and has no manifest.json: it was not made by this script, choose another --out")
        aside = out.with_name(f".{out.name}.making")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        measured = build(aside, settings)
        manifest = {"settings": asdict(settings), "measured": measured, "files": file_hashes(aside)}
        (aside / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        if out.exists():
            shutil.rmtree(out)
        aside.rename(out)
    return out


def command_line(description: str, default_out: Path, make: Callable[[Path, bool], Path]) -> None:
    """`--out DIR --force`; prints the folder and what was measured when it was made."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=default_out, help="folder to make (default: %(default)s)")
    parser.add_argument("--force", action="store_true", help="make it again even if it is complete")
    arguments = parser.parse_args()
    out = make(arguments.out, arguments.force)
    measured = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["measured"]
    print(f"{out}: " + ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in measured.items()))


@contextmanager
def _one_maker(out: Path) -> Iterator[None]:
    """Others that want the same folder wait; the lock ends with the process, however it ends."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(out.parent / f".{out.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
