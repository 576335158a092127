"""Which run a process takes part in: that of its folder, or one that begins with it."""

from __future__ import annotations

import socket
from pathlib import Path

from roll.configs.ppo import PPOConfig
from roll.metrics.run_identity import RunIdentity, read_identity
from roll.pipeline.checkpoint import Checkpoint


def continues(checkpoint: Checkpoint | None, run_dir: Path) -> bool:
    """Whether a run goes on in its own folder; one that starts from another run's checkpoint does not. `checkpoints`, or one of
    them, may be a link to another disk."""
    if checkpoint is None:
        return False
    path, own = checkpoint.path.resolve(), run_dir / "checkpoints"
    named_there = checkpoint.path.parent.resolve() == own.resolve()
    return named_there or (own / f"step-{checkpoint.step}").resolve() == path or run_dir.resolve() in path.parents


def standing(config: PPOConfig, checkpoint: Checkpoint | None) -> RunIdentity | None:
    """The run that this process goes on with, or joins; None: one begins. Raises `ValueError`."""
    goes_on = continues(checkpoint, Path(config.run_dir))
    if config.mode == "bench" or (config.mode == "both" and not goes_on and config.resume_from_checkpoint != "auto"):
        return None
    known = str(checkpoint.state.get("run", "")) if checkpoint is not None and goes_on else ""
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
