"""Identity of a run: `run.json` in the folder of a run, written by the first of its processes, read by all others.

The folder gives a run its random id; its checkpoints, published weights and database repeat it, so that two runs which meet in
one of them are told apart. Each process also notes there, in its own folder, where its database lies: an address may be relative
to a folder that only the process knew.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from roll.core.record.journal import write_atomically

RUN = "run.json"
SQLITE = "sqlite:///"
DATABASE = "groups.db"
"""Database of a run whose configuration names no other."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    id: str
    exp_name: str
    folder: str
    """Absolute, where it was when this was last written down."""
    host: str
    began: str
    database: str = ""
    """The address of its groups, with an absolute path, as the process of this folder used it."""

    def __str__(self) -> str:
        return f"the run {self.exp_name} in {self.folder} (begun {self.began} on {self.host})"


def read_identity(folder: Path) -> RunIdentity | None:
    """Returns the identity; None if no run has begun there. Raises `ValueError` if the file is damaged."""
    path = folder / RUN
    try:
        found: Any = json.loads(path.read_bytes())
        identity = RunIdentity(**found)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}; its trainer writes it again when it goes on from a checkpoint") from error
    if not all(isinstance(value, str) for value in found.values()) or not identity.id:
        raise ValueError(f"{path} is damaged: it names no run")
    return identity


def identify(folder: Path, exp_name: str, known: str = "") -> RunIdentity:
    """Returns the run of this folder. If it has none, one begins; processes that do so at the same time begin the same one.
    `known`: its id, if a checkpoint has it. Raises `ValueError`, `OSError`."""
    began = time.strftime("%Y-%m-%d %H:%M:%S")
    here = str(folder.resolve())
    fresh = RunIdentity(known or secrets.token_hex(8), exp_name, here, socket.gethostname(), began)
    try:
        found = read_identity(folder)
    except ValueError:
        if not known:
            raise
        write_identity(folder, fresh)
        return fresh
    if found is not None:
        return RunIdentity(found.id, exp_name, here, found.host, found.began, found.database)
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".{RUN}.{fresh.id}.{os.getpid()}"
    aside.write_bytes(_contents(fresh))
    try:
        with suppress(FileExistsError):
            os.link(aside, folder / RUN)
    finally:
        aside.unlink()
    written = read_identity(folder)
    assert written is not None
    return written


def started_in(folder: Path) -> Path | None:
    """Returns the folder that the relative paths of a run's config.yaml refer to; None if nothing there says it."""
    with suppress(ValueError, OSError, LookupError, TypeError, yaml.YAMLError):
        identity, config = read_identity(folder), yaml.safe_load((folder / "config.yaml").read_text())
        below = Path(os.path.normpath(Path(config["output_dir"], config["exp_name"])))
        if identity is not None and not below.is_absolute() and Path(identity.folder).parts[-len(below.parts) :] == below.parts:
            return Path(identity.folder).parents[len(below.parts) - 1]
    return None


def write_identity(folder: Path, identity: RunIdentity) -> None:
    write_atomically(folder / RUN, _contents(identity))


def _contents(identity: RunIdentity) -> bytes:
    return json.dumps(asdict(identity), indent=1).encode()


def groups_address(run_dir: Path) -> str | None:
    """Returns the database of a run, if it has one: an absolute path, as the run used it. Raises `ValueError`."""
    path = run_dir / "config.yaml"
    config = yaml.safe_load(path.read_text()) or {} if path.is_file() else {}
    if config.get("mode") == "bench":
        return None
    named, own = config.get("groups_database"), run_dir / DATABASE
    if not named:
        return f"{SQLITE}{own.resolve()}" if own.is_file() else None
    identity = read_identity(run_dir)
    if identity is not None and identity.database:
        return _of_this_folder(run_dir, identity)
    if named.startswith(SQLITE) and not named.startswith(f"{SQLITE}/"):
        raise ValueError(
            f"groups_database {named} is relative to the folder that the run was started in, and no {RUN} says which"
        )
    return str(named)


def _of_this_folder(run_dir: Path, identity: RunIdentity) -> str:
    """Returns the address that the run noted, or, where the folder was moved or copied, that of the file which went with it.
    Raises `ValueError` for a copy that has none: the database is the original's."""
    address, was, here = identity.database, Path(identity.folder), run_dir.resolve()
    here = next((above for above in here.parents if _id(above) == identity.id), here)  # that of an explorer lies in its run's
    if not address.startswith(SQLITE) or here == was:
        return address
    file = Path(address.removeprefix(SQLITE))
    beside = Path(os.path.normpath(here / os.path.relpath(file, was)))
    if beside.is_file():
        return f"{SQLITE}{beside}"
    if _id(was) == identity.id:
        raise ValueError(f"{here} is a copy of {was}, whose database is {file}; of its own there is none ({beside})")
    return address


def _id(folder: Path) -> str:
    with suppress(ValueError):
        return found.id if (found := read_identity(folder)) is not None else ""
    return ""
