"""`--checkpoint best`: the best checkpoint of the run that is here."""

from __future__ import annotations

from pathlib import Path

from roll.core.configs.problems import ConfigError, Problem
from roll.prompts.paths import BEST

PLACES = (f"checkpoints/{BEST}", f"*/checkpoints/{BEST}", f"output/*/checkpoints/{BEST}")
"""Below the present folder: a run, its output_dir, or the folder in which it was started."""


def named_best(checkpoint: str) -> Path:
    """Returns the folder that an option names. Raises `ConfigError` for `best` where there is no such run, or more than one."""
    path = Path(checkpoint)
    if checkpoint != BEST or path.exists():
        return path
    found = sorted(each for place in PLACES for each in Path().glob(place) if each.exists())
    if len(found) == 1:
        return found[0]
    message = f"there are {', '.join(map(str, found))}" if found else "no run here has a best checkpoint (keep_best)"
    fix = "name one of them" if found else f"<output_dir>/<exp_name>/checkpoints/{BEST}"
    raise ConfigError([Problem("--checkpoint", checkpoint, message, fix)])
