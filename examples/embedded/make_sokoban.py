"""Makes the embedded agent for Sokoban: a tiny real language model that knows how to push the box home, and rarely keeps to it.

`python examples/embedded/make_sokoban.py [--out DIR] [--force]` writes `model/`. Nothing is downloaded. How it comes to know, and
to stray: taught_player.py.
"""

from __future__ import annotations

from pathlib import Path

from made_folder import command_line
from taught_player import Settings, make_player, read_game

DEFAULT_OUT = Path(__file__).resolve().parent / "cache_sokoban"
SETTINGS = Settings(
    game=read_game("agent_val_sokoban", "Sokoban"),
    episodes=16000,
    turns=10,
    learn_steps=900,
    hesitation=0.25,
)


def make(out: Path = DEFAULT_OUT, force: bool = False, settings: Settings = SETTINGS) -> Path:
    return make_player(out, settings, force)


if __name__ == "__main__":
    command_line("Makes the embedded agent for Sokoban (about three minutes).", DEFAULT_OUT, make)
