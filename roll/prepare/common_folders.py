"""Paths that all machines of a run have to see, tried before its first worker starts: the driver has to read the files of a
trainer's rank, and a model has to lie where it is loaded. Otherwise the first checkpoint would tell, hours later."""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from roll.core.configs.problems import Problem
from roll.core.distributed.backend import Backend
from roll.core.pipeline.prepared import Prepared
from roll.core.pipeline.roles import of_trainer
from roll.transports.node_files import host

SHARED = "a folder on a file system that all machines of the run see, at the same path"
EVERYWHERE = "put it at the same path on every machine of the run"


def not_common(prepared: Prepared, backend: Backend) -> Iterator[Problem]:
    """Each path that a machine of the run does not see as the driver's does."""
    config, checkpoint = prepared.config, prepared.checkpoint
    roles = config.roles()
    writers = {device for name, role in roles.items() if of_trainer(name) for device in role.devices}
    if config.model_update_transport == "checkpoint_dir":
        writers |= {device for role in roles.values() for device in role.devices}
    yield from _not_written_together(backend, prepared.run_dir, writers)
    if config.model_update_transport == "ipc":
        yield from _other_hosts(backend, {device for role in roles.values() for device in role.devices})
    for name, role in roles.items():
        key = f"{name}.model_args.model_name_or_path" if role.model_args.model_name_or_path else "pretrain"
        yield from _missing(backend, config.model_folder(role), key, role.devices)
        if checkpoint is not None:
            yield from _missing(backend, str(checkpoint.path), "resume_from_checkpoint", role.devices)


def _missing(backend: Backend, path: str, key: str, devices: Collection[int]) -> Iterator[Problem]:
    for node, there in backend.ask_nodes(devices, os.path.exists, path).items():
        if not there:
            yield Problem(key, path, f"is not there on {node}", EVERYWHERE)


def _other_hosts(backend: Backend, devices: Collection[int]) -> Iterator[Problem]:
    """A handle means another file on another host, or in another container."""
    own, fix = host(), "object_store, or collective where many engines are on other nodes"
    for node, theirs in backend.ask_nodes(devices, host).items():
        if theirs != own:
            yield Problem("model_update_transport", "ipc", f"{node} does not see the processes of {platform.node()}", fix)


def _not_written_together(backend: Backend, folder: Path, writers: Collection[int]) -> Iterator[Problem]:
    token = secrets.token_hex(8)
    marks = [folder / f".seen-{token}"]
    try:
        marks[0].touch()
        for node, (name, error) in backend.ask_nodes(writers, _written, str(folder), token).items():
            marks.append(folder / name)
            if not (error or marks[-1].exists()):
                error = f"writes a file there that {platform.node()}, where the run was started, does not see"
            if error:
                yield Problem("output_dir", str(folder.parent), f"{node} {error}", SHARED)
    finally:
        for path in marks:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _written(folder: str, token: str) -> tuple[str, str]:
    """Runs on another machine: the name of a file that it has written in the folder, or why it has not."""
    name = f".seen-{token}-{platform.node()}-{os.getpid()}"
    try:
        if not Path(folder, f".seen-{token}").exists():
            return name, f"does not see {folder} of the machine where the run was started"
        Path(folder, name).touch()
    except OSError as error:
        return name, f"cannot write in {folder}: {error.strerror or error}"
    return name, ""
