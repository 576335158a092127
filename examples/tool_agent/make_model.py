"""Makes the model of embedded.yaml: a tiny real language model that was taught to use the tool, and then made to hesitate.

`python make_model.py [--out DIR] [--force]` writes `cache/model`. Nothing is downloaded. How it is taught: taught_turns.py.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "embedded"))  # what all makers of embedded models share

import yaml  # noqa: E402
from made_folder import command_line, make_folder  # noqa: E402
from shop import GOODS, Shop, answer, call  # noqa: E402
from taught_turns import Act, Conversation, Lessons, Turn, teach_conversation  # noqa: E402

DEFAULT_OUT = HERE / "cache"
GAME: dict[str, Any] = yaml.safe_load((HERE / "embedded.yaml").read_text(encoding="utf-8"))["custom_envs"]["Shop"]
WORDS = r"<[a-z_]+>.*?</[a-z_]+>|\w+|[\s\S]"
"""What a token is: a whole call or answer, a word, a number, or any other character."""


@dataclass(frozen=True)
class Settings(Lessons):
    game: dict[str, Any] = field(default_factory=lambda: GAME)
    """The shop as embedded.yaml has it."""


def build(folder: Path, settings: Settings) -> dict[str, float]:
    game, config = settings.game, settings.game["env_config"]

    def play(seed: int, act: Act) -> tuple[list[Turn], bool]:
        shop = Shop(**config)
        observation, _ = shop.reset(seed)
        turns: list[Turn] = []
        while len(turns) < game["max_steps"]:
            message = game["agent_template"].format(observation=observation)
            best = shop.oracle_action()
            turns.append(Turn(message, best, act(message, best)))
            observation, _, over, _, info = shop.step(turns[-1].played)
            if over:
                return turns, info["success"]
        return turns, False

    calls = [*map(call, GOODS)]
    actions = [*calls, *(answer(number) for number in range(1, config["basket"] * config["dearest"] + 1))]
    shop = Shop(**config)
    shop.reset(0)
    talk = Conversation(play, actions, calls, WORDS, context=128, also_said=[shop.step("")[0]])
    return teach_conversation(folder, talk, settings)


def make(out: Path = DEFAULT_OUT, force: bool = False, settings: Settings = Settings()) -> Path:
    return make_folder(out, settings, build, force)


if __name__ == "__main__":
    command_line("Makes the tiny model of embedded.yaml (about half a minute).", DEFAULT_OUT, make)
