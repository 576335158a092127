"""A tiny real language model that was taught to play a game, and then made to play it badly.

The warm start of the agentic demos. The model sees the turns of a player who wanders, and learns what a good player would have
done in each; then its logits are scaled down. So it knows the way (greedy decoding) better than it walks it (sampling at
temperature 1), which is what reinforcement learning can mend. Its games have seeds that no run draws. Which game, and how it is
shown, is read from the run's configuration.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from made_folder import make_folder
from tiny_model import SPECIAL, reproducible, teach, tiny_qwen2
from torch import Tensor
from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

from roll import TextGame, make_env

CONFIGS = Path(__file__).resolve().parents[1] / "config"
FIRST_SEED = 2**31
"""Runs draw seeds below it."""
MEASURED_ON = 200
"""Games that the model was not taught on."""

Turn = tuple[str, str]
"""Message, and what a good player would have answered."""


@dataclass(frozen=True)
class Settings:
    """All that the result depends on."""

    game: dict[str, Any]
    """The environment, as a configuration's `custom_envs` has it: `read_game`."""
    episodes: int
    turns: int
    """Of an episode, at most."""
    learn_steps: int
    """Optimiser steps."""
    hesitation: float
    """The logits are multiplied by this at the end: 0.25 turns sampling at temperature 1 into what it was at temperature 4."""
    format: int = 1
    """Raised when the maker itself changes."""
    seed: int = 42
    wander: float = 0.5
    """Chance that the player of the episodes moves at random, and so comes to where a good one would not."""
    batch_size: int = 128
    learning_rate: float = 5e-3
    hidden_size: int = 96
    intermediate_size: int = 192
    layers: int = 2
    heads: int = 3
    """Of 32 numbers each, the fewest that vLLM knows on CPUs."""
    kv_heads: int = 1
    rope_theta: float = 100.0
    """Of the rotary position embedding: small, as what has to be told apart stands within some forty tokens."""
    context: int = 128


def read_game(config_name: str, tag: str) -> dict[str, Any]:
    """The environment `tag` of examples/config/<config_name>.yaml."""
    config = yaml.safe_load((CONFIGS / f"{config_name}.yaml").read_text(encoding="utf-8"))
    game: dict[str, Any] = config["custom_envs"][tag]
    return game


def new_game(settings: Settings) -> TextGame:
    env = make_env(settings.game["env_type"], settings.game["env_config"])
    assert isinstance(env, TextGame), "these have an oracle and one letter an action"
    return env


def message(settings: Settings, observation: object) -> str:
    assert isinstance(observation, str), "these games are read"
    text: str = settings.game["agent_template"].format(observation=observation)
    return text


def wander(env: TextGame, seed: int, settings: Settings) -> list[Turn]:
    """An episode, until its end or until the game cannot be won any more."""
    rng = random.Random(seed)
    observation, _ = env.reset(FIRST_SEED + seed)
    turns: list[Turn] = []
    over = False
    while not over and len(turns) < settings.turns and (best := env.oracle_action()) is not None:
        turns.append((message(settings, observation), best))
        played = rng.choice(env.reader.words) if rng.random() < settings.wander else best
        observation, _, terminated, truncated, _ = env.step(played)
        over = terminated or truncated
    return turns


def make_tokenizer(vocabulary: Sequence[str]) -> Qwen2Tokenizer:
    """One token a character. Qwen2's own class: transformers loads it for a Qwen2 model whatever the folder says."""
    # A byte-level vocabulary, which is Qwen2's, writes spaces and line ends as the characters from 256 on.
    written = {chr(256 + ord(token)) if token in " \n" else token: i for i, token in enumerate(vocabulary)}
    return Qwen2Tokenizer(vocab=written, merges=[], pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def encoded(text: str, vocabulary: Sequence[str]) -> list[int]:
    return [vocabulary.index(character) for character in text]


def learn(model: Qwen2ForCausalLM, turns: Sequence[Turn], vocabulary: Sequence[str], settings: Settings) -> None:
    """Prediction of the good player's answer. All messages of a game are equally long."""
    shown = torch.tensor([encoded(text, vocabulary) for text, _ in turns])
    best = torch.tensor([vocabulary.index(letter) for _, letter in turns])

    def loss(_: int) -> Tensor:
        rows = torch.randint(len(turns), (settings.batch_size,))
        return F.cross_entropy(model(shown[rows], use_cache=False, logits_to_keep=1).logits[:, 0], best[rows])

    teach(model, settings.learn_steps, settings.learning_rate, loss)
    with torch.no_grad():
        model.lm_head.weight *= settings.hesitation


@torch.no_grad()
def success(model: Qwen2ForCausalLM, vocabulary: Sequence[str], settings: Settings, *, greedy: bool) -> float:
    """Share of the games that are won within the run's `max_steps`."""
    games = [new_game(settings) for _ in range(MEASURED_ON)]
    seen = {i: game.reset(FIRST_SEED + settings.episodes + i)[0] for i, game in enumerate(games)}
    won = 0
    for _ in range(settings.game["max_steps"]):
        if not seen:
            break
        shown = torch.tensor([encoded(message(settings, observation), vocabulary) for observation in seen.values()])
        logits = model(shown, use_cache=False).logits[:, -1]
        chosen = logits.argmax(-1) if greedy else torch.multinomial(logits.softmax(-1), 1)[:, 0]
        for i, token in zip(list(seen), chosen.tolist(), strict=True):
            seen[i], _, terminated, truncated, info = games[i].step(vocabulary[token])
            won += bool(info.get("success", False))
            if terminated or truncated:
                del seen[i]
    return won / len(games)


def build(folder: Path, settings: Settings) -> dict[str, float]:
    """Fills an empty folder; returns what was measured."""
    env = new_game(settings)
    turns = [turn for seed in range(settings.episodes) for turn in wander(env, seed, settings)]
    vocabulary = SPECIAL + sorted({*env.reader.words, *(character for text, _ in turns for character in text)})
    with reproducible(settings.seed):
        rope = {"rope_type": "default", "rope_theta": settings.rope_theta}
        model = tiny_qwen2(settings, len(vocabulary), context=settings.context, rope_parameters=rope)
        learn(model, turns, vocabulary, settings)
        measured = {
            "greedy_success": success(model, vocabulary, settings, greedy=True),
            "sampled_success": success(model, vocabulary, settings, greedy=False),
        }
    model.save_pretrained(folder / "model")
    make_tokenizer(vocabulary).save_pretrained(folder / "model")
    return measured


def make_player(out: Path, settings: Settings, force: bool = False) -> Path:
    """Makes the folder `out` unless it is there already; returns it. `model/` is the model (safetensors) with its tokenizer.
    Raises `FileExistsError` as `make_folder` does."""
    return make_folder(out, settings, build, force)
