"""Makes the model of embedded.yaml: a tiny real language model that was taught to use the calculator, and then made to hesitate.

`python make_model.py [--out DIR] [--force]` writes `cache/model`. Nothing is downloaded. How it is taught: taught_turns.py.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "embedded"))  # what all makers of embedded models share

import yaml  # noqa: E402
from made_folder import command_line, make_folder  # noqa: E402
from products import Products  # noqa: E402
from taught_turns import Act, Conversation, Lessons, Turn, teach_conversation  # noqa: E402

import roll  # noqa: E402

DEFAULT_OUT = HERE / "cache"
GAME: dict[str, Any] = yaml.safe_load((HERE / "embedded.yaml").read_text(encoding="utf-8"))["custom_envs"]["Products"]
CALCULATOR = roll.Calculator()
TOOL = CALCULATOR.instructions
WORDS = rf"{re.escape(TOOL)}|<[a-z_]+>\d+ \* \d+</[a-z_]+>|\w+|[\s\S]"
"""What a token is: all that is told of the tool, a whole call, a word, a number, or any other character."""


@dataclass(frozen=True)
class Settings(Lessons):
    game: dict[str, Any] = field(default_factory=lambda: GAME)
    """As embedded.yaml has it."""
    episodes: int = 4000
    learn_steps: int = 300
    hesitation: float = 0.35


def call(expression: str) -> str:
    return f"<calculator>{expression}</calculator>"


def actions_of(largest: int) -> list[str]:
    factors = range(2, largest + 1)
    pairs = [*itertools.product(factors, factors)]
    return [*(call(f"{one} * {other}") for one, other in pairs), *map(str, sorted({one * other for one, other in pairs}))]


def build(folder: Path, settings: Settings) -> dict[str, float]:
    game = settings.game

    def play(seed: int, act: Act) -> tuple[list[Turn], bool]:
        env = Products(**game["env_config"])
        shown = f"{env.reset(seed)[0]}\n{TOOL}"
        turns: list[Turn] = []
        told = ""
        while len(turns) < game["max_steps"]:
            message = game["agent_template"].format(observation=shown)
            best = env.oracle_action() if told == env.oracle_action() else call(env.expression)
            turns.append(Turn(message, best, act(message, best)))
            expression = turns[-1].played.removeprefix("<calculator>").removesuffix("</calculator>")
            if expression == turns[-1].played:
                return turns, bool(env.step(expression)[4]["success"])
            shown = told = asyncio.run(CALCULATOR.run({"expression": expression}))
        return turns, False

    actions = actions_of(game["env_config"]["largest"])
    return teach_conversation(folder, Conversation(play, actions, actions, WORDS, context=256), settings)


def make(out: Path = DEFAULT_OUT, force: bool = False, settings: Settings = Settings()) -> Path:
    return make_folder(out, settings, build, force)


if __name__ == "__main__":
    command_line("Makes the tiny model of embedded.yaml (about a minute).", DEFAULT_OUT, make)
