"""The folder and the checkpoint that a run begins with; obstacles to them, with a fix for the requested ones."""

from __future__ import annotations

import socket
from pathlib import Path

from roll.core.configs.ppo import PPOConfig
from roll.core.errors import CheckpointError, Misfit
from roll.core.record.checkpoint import Checkpoint, CheckpointStore, resumable
from roll.core.record.run_identity import RunIdentity, read_identity

_AUTO = ("latest", "last", "newest", "resume_path", "yes", "on")
"""Words of others for auto."""


def beginning(config: PPOConfig) -> Checkpoint | None:
    """Returns None if the run begins anew. Raises `ValueError`, which has its fix."""
    asked, store = config.resume_from_checkpoint, CheckpointStore(Path(config.run_dir) / "checkpoints")
    try:
        return resumable(store, config)
    except CheckpointError as error:
        if asked is True and not store.steps():
            fix = "auto, which begins a run where there is none, or false"
        elif asked is True or asked == "auto":
            fix = "the path of a complete checkpoint, or false"
        elif isinstance(asked, str) and Path(asked).name.lower() in _AUTO and not Path(asked).exists():
            fix = "auto"
        else:
            fix = "name a complete checkpoint, or write auto or false"
        raise Misfit(str(error), fix) from error


def archive_previous(run_dir: Path) -> Path | None:
    """Moves the folder of an earlier run of the same name aside (`<exp_name>.old-1`, `.old-2`, ...), so that nothing of it is
    lost. A plain number would do for no sweep: `ratio=0.1` is the name of another of its runs than `ratio=0`."""
    if not (run_dir / "config.yaml").exists():
        return None
    number = 1
    while (aside := run_dir.with_name(f"{run_dir.name}.old-{number}")).exists():
        number += 1
    run_dir.rename(aside)
    run_dir.mkdir()
    return aside


def standing(config: PPOConfig, checkpoint: Checkpoint | None) -> RunIdentity | None:
    """Returns the run that this process continues or joins; None: one begins. Raises `ValueError`."""
    goes_on = checkpoint is not None and checkpoint.is_of(Path(config.run_dir))
    if config.only_evaluates or (config.has_both_sides and not goes_on and config.resume_from_checkpoint != "auto"):
        return None
    known: str = checkpoint.state["run"] if checkpoint is not None and goes_on else ""
    folder = Path(config.shared_dir)
    try:
        found = read_identity(folder)
    except ValueError:
        if not known:
            raise
        found = None
    if found is None:
        return RunIdentity(known, config.exp_name, str(folder.resolve()), socket.gethostname(), "") if known else None
    if known and checkpoint is not None and found.id != known:
        raise ValueError(f"{checkpoint.path} is of another run ({known}) than this folder ({found.id})")
    return found
