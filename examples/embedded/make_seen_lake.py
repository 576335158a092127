"""Makes a tiny model that is to walk across frozen lakes that it sees; it knows nothing, its weights are random.

`python examples/embedded/make_seen_lake.py [--out DIR] [--force]` writes `model/`. It is that of `make_shapes.py` with other
words: an image of 24 x 24 pixels is nine features, one for each square of a lake of three by three, and an answer is one token.
"""

from __future__ import annotations

from pathlib import Path

import torch
from made_folder import command_line, make_folder
from make_shapes import MARKS, Settings, model_of, save
from tiny_model import SPECIAL, reproducible

DEFAULT_OUT = Path(__file__).resolve().parent / "cache_seen_lake"
SETTINGS = Settings()
VOCABULARY = [*SPECIAL, *MARKS, "where?", "Left", "Down", "Right", "Up"]


def build(folder: Path, settings: Settings) -> dict[str, float]:
    """Fills an empty folder; returns the number of weights."""
    with reproducible(settings.seed):
        torch.manual_seed(settings.seed)
        model = model_of(settings, VOCABULARY)
    return save(folder / "model", model, VOCABULARY)


def make(out: Path = DEFAULT_OUT, force: bool = False, settings: Settings = SETTINGS) -> Path:
    return make_folder(out, settings, build, force)


if __name__ == "__main__":
    command_line("Makes a tiny model that is to walk across lakes that it sees (seconds).", DEFAULT_OUT, make)
