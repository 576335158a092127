"""Makes the embedded agent: a tiny real language model that walks on frozen lakes, and often slips off its way by itself.

`python examples/embedded/make_frozen_lake.py [--out DIR] [--force]` writes `model/` (Qwen2 architecture, safetensors, with its
tokenizer). Nothing is downloaded. The model reads episodes of a player who wanders, and learns what a good one would have done in
each of its turns; then its logits are scaled down. So it knows the way (greedy decoding) better than it walks it (sampling), and
neither perfectly, which is what reinforcement learning can mend. Its lakes have seeds that no run draws.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from made_folder import command_line, make_folder
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from roll.pipeline.agentic.env.frozen_lake import FrozenLake

DEFAULT_OUT = Path(__file__).resolve().parent / "cache_frozen_lake"
LETTERS = {"L": "Left", "D": "Down", "R": "Right", "U": "Up"}
ENV_CONFIG: dict[str, Any] = {"action_pattern": "(.*)", "action_lookup": LETTERS}
"""As in examples/config/agent_val_frozen_lake_async.yaml: a 4 by 4 lake whose ice is not slippery, one letter a turn."""
TEMPLATE = "{observation}\n>"
"""Likewise: the message of a turn."""
VOCABULARY = ["<pad>", "<eos>", "<unk>", "\n", ">", "_", "O", "G", "P", "X", *LETTERS]
NEWLINE = "\u010a"
"""How a byte-level vocabulary, which is Qwen2's, writes the end of a line."""
PAD, EOS = 0, 1
FIRST_SEED = 2**31
"""Runs draw seeds below it."""
MAX_STEPS = 10

Episode = tuple[list[int], list[int]]
"""Token ids, and for each the token that should stand there (0: no action)."""


@dataclass(frozen=True)
class Settings:
    """All that the result depends on."""

    format: int = 3
    """Raised when the maker itself changes."""
    seed: int = 42
    episodes: int = 14000
    turns: int = 6
    """Of an episode the model learns from."""
    wander: float = 0.5
    """Chance that the player of these episodes moves at random. With less, the moves before tell the next one, and the model
    learns to go on rather than to look."""
    hidden_size: int = 64
    intermediate_size: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    learn_steps: int = 560
    """Optimiser steps."""
    hesitation: float = 0.3
    """The logits are multiplied by this at the end: sampling at temperature 1 is then as it was at temperature 3.3."""
    batch_size: int = 32
    learning_rate: float = 8e-3


def make_tokenizer() -> Qwen2Tokenizer:
    """One token a character. Qwen2's own class: transformers loads it for a Qwen2 model whatever the folder says."""
    vocabulary = {NEWLINE if token == "\n" else token: i for i, token in enumerate(VOCABULARY)}
    return Qwen2Tokenizer(vocab=vocabulary, merges=[], pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def encode(text: str) -> list[int]:
    return [VOCABULARY.index(character) for character in text]


def wandering(seed: int, settings: Settings) -> Episode:
    """One episode, with a good player's letter for every turn."""
    env, rng = FrozenLake(**ENV_CONFIG), random.Random(seed)
    observation, _ = env.reset(FIRST_SEED + seed)
    ids: list[int] = []
    wanted: list[int] = []
    for _ in range(settings.turns):
        shown = encode(TEMPLATE.format(observation=observation))
        best = env.oracle_action()
        assert best is not None, "every lake can be crossed, and the player stands on ice"
        played = rng.choice(list(LETTERS)) if rng.random() < settings.wander else best
        ids += [*shown, *encode(played)]
        wanted += [*[0] * len(shown), *encode(best)]
        observation, _, terminated, _, _ = env.step(played)
        if terminated:
            break
    return ids, wanted


def batch_of(episodes: Sequence[Episode]) -> tuple[Tensor, Tensor]:
    """[B, T] ids and wanted tokens, right-padded."""
    width = max(len(ids) for ids, _ in episodes)
    padded = [[row + [PAD] * (width - len(row)) for row in rows] for rows in zip(*episodes, strict=True)]
    return torch.tensor(padded[0]), torch.tensor(padded[1])


def make_model(settings: Settings) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=len(VOCABULARY),
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.kv_heads,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    return Qwen2ForCausalLM(config)


def train(model: Qwen2ForCausalLM, settings: Settings) -> None:
    """Prediction of a good player's letters in the episodes of a wandering one."""
    episodes = [wandering(seed, settings) for seed in range(settings.episodes)]
    total = settings.learn_steps
    rng = random.Random(settings.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 50, 1.0) * max(1 - s / total, 0.05))
    model.train()
    for _ in range(total):
        ids, wanted = batch_of(rng.sample(episodes, min(settings.batch_size, len(episodes))))
        target = wanted[:, 1:]
        acts = target > 0
        logits = model(ids[:, :-1], use_cache=False).logits[acts]
        loss = F.cross_entropy(logits, target[acts])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        model.lm_head.weight *= settings.hesitation


@torch.no_grad()
def success(model: Qwen2ForCausalLM, seeds: Sequence[int], *, greedy: bool) -> float:
    """Share of the lakes that are crossed within `MAX_STEPS` turns."""
    lakes = [FrozenLake(**ENV_CONFIG) for _ in seeds]
    seen = [lake.reset(seed)[0] for lake, seed in zip(lakes, seeds, strict=True)]
    contexts: list[list[int]] = [[] for _ in seeds]
    crossed, walking = 0, list(range(len(seeds)))
    for _ in range(MAX_STEPS):
        if not walking:
            break
        for i in walking:
            contexts[i] += encode(TEMPLATE.format(observation=seen[i]))
        # All that still walk have had as many turns, so their contexts are equally long.
        logits = model(torch.tensor([contexts[i] for i in walking]), use_cache=False).logits[:, -1]
        chosen = logits.argmax(-1) if greedy else torch.multinomial(logits.softmax(-1), 1)[:, 0]
        on: list[int] = []
        for i, token in zip(walking, chosen.tolist(), strict=True):
            contexts[i].append(token)
            seen[i], reward, terminated, _, _ = lakes[i].step(VOCABULARY[token])
            crossed += reward > 0
            if not terminated:
                on.append(i)
        walking = on
    return crossed / len(seeds)


def build(folder: Path, settings: Settings) -> dict[str, float]:
    """Fills an empty folder; returns what was measured. The caller's random state and thread count are left as they were."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        model = make_model(settings)
        train(model, settings)
        unseen = range(FIRST_SEED + settings.episodes, FIRST_SEED + settings.episodes + 200)
        measured = {
            "greedy_success": success(model, unseen, greedy=True),
            "sampled_success": success(model, unseen, greedy=False),
        }
    torch.set_num_threads(threads)
    model.save_pretrained(folder / "model")
    make_tokenizer().save_pretrained(folder / "model")
    return measured


def make(out: Path = DEFAULT_OUT, force: bool = False, settings: Settings = Settings()) -> Path:
    """Makes the folder `out` unless it is there already; returns it. Raises `FileExistsError` as `make_folder` does."""
    made: Path = make_folder(out, settings, build, force)
    return made


if __name__ == "__main__":
    command_line("Makes the embedded agent for frozen lakes (about a minute).", DEFAULT_OUT, make)
