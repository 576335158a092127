"""The checkpoint that a run goes on from; what keeps it from that, with the fix for what was asked for."""

from __future__ import annotations

from pathlib import Path

from roll.core.configs.ppo import PPOConfig
from roll.core.errors import CheckpointError, Misfit
from roll.core.record.checkpoint import Checkpoint, CheckpointStore, resumable

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
