"""Makes the model of embedded.yaml: a tiny real language model that was taught to use the calculator, and then made to hesitate.

`python make_model.py [--out DIR] [--force]` writes `cache/model`. Nothing is downloaded. The model sees the episodes of a player
who sometimes writes anything, and learns what a good player would have written; then its logits are scaled down. So it knows what
to do (greedy decoding) better than it does it (sampling), which is what training can mend.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "embedded"))  # what all makers of embedded models share

import torch  # noqa: E402
import yaml  # noqa: E402
from made_folder import command_line, make_folder  # noqa: E402
from products import Products  # noqa: E402
from taught_turns import Turn, encode, learn, word_tokenizer  # noqa: E402
from tiny_model import SPECIAL, reproducible, tiny_qwen2  # noqa: E402
from transformers import Qwen2ForCausalLM  # noqa: E402

import roll  # noqa: E402

DEFAULT_OUT = HERE / "cache"
GAME: dict[str, Any] = yaml.safe_load((HERE / "embedded.yaml").read_text(encoding="utf-8"))["custom_envs"]["Products"]
CALCULATOR = roll.Calculator()
TOOL = CALCULATOR.instructions
WORDS = rf"{re.escape(TOOL)}|<[a-z_]+>\d+ \* \d+</[a-z_]+>|\w+|[\s\S]"
"""What a token is: all that is told of the tool, a whole call, a word, a number, or any other character."""
FIRST_SEED = 2**31
"""Runs draw seeds below it."""
MEASURED_ON = 100


@dataclass(frozen=True)
class Settings:
    """All that the result depends on."""

    game: dict[str, Any] = field(default_factory=lambda: GAME)
    """As embedded.yaml has it."""
    format: int = 1
    """Raised when the maker itself changes."""
    seed: int = 42
    episodes: int = 4000
    wander: float = 0.2
    """Chance that the player of the episodes writes anything."""
    learn_steps: int = 300
    hesitation: float = 0.35
    """The logits are multiplied by this at the end."""
    batch_size: int = 64
    learning_rate: float = 3e-3
    hidden_size: int = 128
    intermediate_size: int = 256
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2


def call(expression: str) -> str:
    return f"<calculator>{expression}</calculator>"


def actions_of(settings: Settings) -> list[str]:
    factors = range(2, settings.game["env_config"]["largest"] + 1)
    pairs = [*itertools.product(factors, factors)]
    return [*(call(f"{one} * {other}") for one, other in pairs), *map(str, sorted({one * other for one, other in pairs}))]


def play(seed: int, settings: Settings, act: Callable[[str, str], str]) -> tuple[list[Turn], bool]:
    """`act`: (what is shown, the best answer) -> the answer. Returns the turns, and whether they end with the right number."""
    game = Products(**settings.game["env_config"])
    shown = f"{game.reset(FIRST_SEED + seed)[0]}\n{TOOL}"
    turns: list[Turn] = []
    told = ""
    while len(turns) < settings.game["max_steps"]:
        message = settings.game["agent_template"].format(observation=shown)
        best = game.oracle_action() if told == game.oracle_action() else call(game.expression)
        turns.append(Turn(message, best, act(message, best)))
        expression = turns[-1].played.removeprefix("<calculator>").removesuffix("</calculator>")
        if expression == turns[-1].played:
            return turns, bool(game.step(expression)[4]["success"])
        shown = told = asyncio.run(CALCULATOR.run({"expression": expression}))
    return turns, False


def vocabulary_of(episodes: Sequence[Sequence[Turn]], settings: Settings) -> list[str]:
    """Every call, every number, and every word that is shown."""
    actions = actions_of(settings)
    words = {word for turns in episodes for turn in turns for word in re.findall(WORDS, turn.shown)}
    return [*SPECIAL, *actions, *sorted(words - {*actions})]


@torch.no_grad()
def success(model: Qwen2ForCausalLM, vocabulary: Sequence[str], settings: Settings, *, greedy: bool) -> float:
    """Share of the episodes that end with the right number."""
    ids, won = {token: i for i, token in enumerate(vocabulary)}, 0
    for episode in range(MEASURED_ON):
        context: list[int] = []

        def act(message: str, _: str, context: list[int] = context) -> str:
            context += [ids[word] for word in re.findall(WORDS, message)]
            logits = model(torch.tensor([context]), use_cache=False).logits[0, -1]
            context.append(int(logits.argmax() if greedy else torch.multinomial(logits.softmax(-1), 1)))
            return vocabulary[context[-1]]

        won += play(settings.episodes + episode, settings, act)[1]
    return won / MEASURED_ON


def build(folder: Path, settings: Settings) -> dict[str, float]:
    """Fills an empty folder; returns what was measured."""
    actions, rng = actions_of(settings), random.Random(settings.seed)

    def act(_: str, best: str) -> str:
        return rng.choice(actions) if rng.random() < settings.wander else best

    episodes = [play(seed, settings, act)[0] for seed in range(settings.episodes)]
    vocabulary = vocabulary_of(episodes, settings)
    with reproducible(settings.seed):
        model = tiny_qwen2(settings, len(vocabulary), context=256)
        learn(model, *encode(episodes, {token: i for i, token in enumerate(vocabulary)}, WORDS), settings)
        measured = {
            "greedy_success": success(model, vocabulary, settings, greedy=True),
            "sampled_success": success(model, vocabulary, settings, greedy=False),
        }
    model.save_pretrained(folder / "model")
    word_tokenizer(vocabulary).save_pretrained(folder / "model")
    return measured


def make(out: Path = DEFAULT_OUT, force: bool = False, settings: Settings = Settings()) -> Path:
    made: Path = make_folder(out, settings, build, force)
    return made


if __name__ == "__main__":
    command_line("Makes the tiny model of embedded.yaml (about a minute).", DEFAULT_OUT, make)
