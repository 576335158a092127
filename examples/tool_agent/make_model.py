"""Makes the model of embedded.yaml: a tiny real language model that was taught to use the tool, and then made to hesitate.

`python make_model.py [--out DIR] [--force]` writes `cache/model`. Nothing is downloaded. The model sees the episodes of a player
who sometimes calls the tool for the wrong goods, and learns what a good player would have written in each turn; then its logits
are scaled down. So it knows what to do (greedy decoding) better than it does it (sampling), which is what training can mend.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "embedded"))  # what all makers of embedded models share

import torch  # noqa: E402
import yaml  # noqa: E402
from made_folder import command_line, make_folder  # noqa: E402
from shop import GOODS, Shop, answer, call  # noqa: E402
from taught_turns import Turn, encode, learn, word_tokenizer  # noqa: E402
from tiny_model import SPECIAL, reproducible, tiny_qwen2  # noqa: E402
from transformers import Qwen2ForCausalLM  # noqa: E402

DEFAULT_OUT = HERE / "cache"
GAME: dict[str, Any] = yaml.safe_load((HERE / "embedded.yaml").read_text(encoding="utf-8"))["custom_envs"]["Shop"]
WORDS = r"<[a-z_]+>.*?</[a-z_]+>|\w+|[\s\S]"
"""What a token is: a whole call or answer, a word, a number, or any other character."""
FIRST_SEED = 2**31
"""Runs draw seeds below it."""
MEASURED_ON = 200


@dataclass(frozen=True)
class Settings:
    """All that the result depends on."""

    game: dict[str, Any] = field(default_factory=lambda: GAME)
    """The shop as embedded.yaml has it."""
    format: int = 1
    """Raised when the maker itself changes."""
    seed: int = 42
    episodes: int = 8000
    wander: float = 0.2
    """Chance that the player of the episodes calls the tool for any of the goods."""
    learn_steps: int = 350
    hesitation: float = 0.5
    """The logits are multiplied by this at the end."""
    batch_size: int = 64
    learning_rate: float = 3e-3
    hidden_size: int = 128
    intermediate_size: int = 256
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2


def new_shop(settings: Settings) -> Shop:
    return Shop(**settings.game["env_config"])


def message(settings: Settings, observation: str) -> str:
    text: str = settings.game["agent_template"].format(observation=observation)
    return text


def play(shop: Shop, seed: int, settings: Settings) -> list[Turn]:
    rng = random.Random(seed)
    observation, _ = shop.reset(FIRST_SEED + seed)
    turns: list[Turn] = []
    over = False
    while not over and len(turns) < settings.game["max_steps"]:
        best = shop.oracle_action()
        played = call(rng.choice(GOODS)) if rng.random() < settings.wander else best
        turns.append(Turn(message(settings, observation), best, played))
        observation, _, over, _, _ = shop.step(played)
    return turns


def vocabulary_of(episodes: Sequence[Sequence[Turn]], settings: Settings) -> list[str]:
    """Every call, every answer, and every word that the shop says."""
    config = settings.game["env_config"]
    actions = [*map(call, GOODS), *(answer(number) for number in range(1, config["basket"] * config["dearest"] + 1))]
    shop = new_shop(settings)
    shop.reset(FIRST_SEED)
    said = [turn.shown for turns in episodes for turn in turns] + [shop.step("")[0]]
    return [*SPECIAL, *actions, *sorted({word for text in said for word in re.findall(WORDS, text)})]


@torch.no_grad()
def success(model: Qwen2ForCausalLM, vocabulary: Sequence[str], settings: Settings, *, greedy: bool) -> float:
    """Share of the episodes that end with the right sum."""
    ids, won = {token: i for i, token in enumerate(vocabulary)}, 0
    for episode in range(MEASURED_ON):
        shop, context = new_shop(settings), []
        observation, _ = shop.reset(FIRST_SEED + settings.episodes + episode)
        for _ in range(settings.game["max_steps"]):
            context += [ids.get(word, ids["<unk>"]) for word in re.findall(WORDS, message(settings, observation))]
            logits = model(torch.tensor([context]), use_cache=False).logits[0, -1]
            context.append(int(logits.argmax() if greedy else torch.multinomial(logits.softmax(-1), 1)))
            observation, _, over, _, info = shop.step(vocabulary[context[-1]])
            won += info["success"]
            if over:
                break
    return won / MEASURED_ON


def build(folder: Path, settings: Settings) -> dict[str, float]:
    """Fills an empty folder; returns what was measured."""
    episodes = [play(new_shop(settings), seed, settings) for seed in range(settings.episodes)]
    vocabulary = vocabulary_of(episodes, settings)
    with reproducible(settings.seed):
        model = tiny_qwen2(settings, len(vocabulary), context=128)
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
    command_line("Makes the tiny model of embedded.yaml (about half a minute).", DEFAULT_OUT, make)
