"""Makes the embedded agent: a tiny real language model that knows its way across frozen lakes, and often slips off it by itself.

`python examples/embedded/make_frozen_lake.py [--out DIR] [--force]` writes `model/`. Nothing is downloaded. How it comes to know,
and to slip: taught_player.py.
"""

from __future__ import annotations

from pathlib import Path

from made_folder import command_line
from taught_player import Settings, make_player, read_game

DEFAULT_OUT = Path(__file__).resolve().parent / "cache_frozen_lake"
SETTINGS = Settings(
    game=read_game("agent_val_frozen_lake_async", "FrozenLake"),
    episodes=20000,
    turns=6,
    learn_steps=1400,
    hesitation=0.14,
)


def make(out: Path = DEFAULT_OUT, force: bool = False, settings: Settings = SETTINGS) -> Path:
    return make_player(out, settings, force)


if __name__ == "__main__":
    command_line("Makes the embedded agent for frozen lakes (about three minutes).", DEFAULT_OUT, make)
