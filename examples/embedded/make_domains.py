"""Makes a tiny real language model for three domains, noisy in all of them, and its prompt files.

`python examples/embedded/make_domains.py [--out DIR] [--force]` writes `model/`, `train.jsonl` and `validation.jsonl`. Nothing is
downloaded. As in `make_embedded.py` the model is first taught right responses, then misprinted ones. A prompt has six characters:

    47+85=   arithmetic     the sum: 132
    47+85x   code           a Python program after which `x` is the sum: x=47+85
    +++x3=   instructions   so many x: xxx
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from made_folder import command_line, make_folder
from make_embedded import Problem, answer, make_tokenizer
from tiny_model import EOS, PAD, SPECIAL, reproducible, teach, tiny_qwen2
from torch import Tensor

DEFAULT_OUT = Path(__file__).resolve().parent / "cache_domains"
VOCABULARY = [*SPECIAL, *"0123456789", "+", "=", "x"]
PROMPT_TOKENS, ANSWER_TOKENS = len("47+85="), len("x=47+85") + 1


@dataclass(frozen=True)
class Settings:
    """All that the result depends on."""

    format: int = 2
    """Raised when the maker itself changes."""
    seed: int = 42
    validation_rows: int = 60
    """Of each domain but the instructions, of which there are seven in all: they are validated on what they train."""
    hidden_size: int = 128
    intermediate_size: int = 256
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    learn_steps: int = 700
    """Optimiser steps on right responses."""
    misprint_steps: int = 300
    """Optimiser steps on misprinted ones."""
    misprint_rate: float = 0.15
    """Chance that a character of a response is replaced by another one."""
    batch_size: int = 128
    learning_rate: float = 3e-3


def rows_of(problem: Problem) -> list[tuple[dict[str, Any], str]]:
    """A row of each domain, and a right response."""
    a, b = problem
    count = 1 + (a + b) % 7
    follows = [{"letter": "x", "let_frequency": count, "let_relation": "at least"}]
    follows += [{"letter": "x", "let_frequency": count + 1, "let_relation": "less than"}]
    instructions = {"instruction_id_list": ["keywords:letter_frequency"] * 2, "kwargs": follows}
    return [
        (_row("arithmetic", f"{a}+{b}=", problem, ground_truth=answer(problem)), answer(problem)),
        (_row("code", f"{a}+{b}x", problem, test_cases=[f"assert x == {a + b}"]), f"x={a}+{b}"),
        (_row("instructions", f"+++x{count}=", problem, **instructions), "x" * count),
    ]


def _row(domain: str, prompt: str, problem: Problem, **columns: Any) -> dict[str, Any]:
    difficulty = int(problem[0] % 10 + problem[1] % 10 > 9) + int(sum(problem) > 99)
    named = {"id": f"{domain}-{problem[0]}-{problem[1]}", "tag": domain, "prompt": prompt, "difficulty": difficulty}
    return {"ground_truth": "", **named, **columns}


def encode(examples: list[tuple[dict[str, Any], str]]) -> Tensor:
    """[E, PROMPT_TOKENS + ANSWER_TOKENS] int64: prompt, response, end of sequence, padding."""
    ids = {token: i for i, token in enumerate(VOCABULARY)}
    table = torch.full((len(examples), PROMPT_TOKENS + ANSWER_TOKENS), PAD)
    for i, (row, response) in enumerate(examples):
        text = row["prompt"] + response
        table[i, : len(text) + 1] = torch.tensor([*(ids[c] for c in text), EOS])
    return table


def misprint(tokens: Tensor, rate: float) -> Tensor:
    """Replaces each character of the responses, with chance `rate`, by any character."""
    printed = tokens > EOS
    printed[:, :PROMPT_TOKENS] = False
    return torch.where(
        printed & (torch.rand(tokens.shape) < rate), torch.randint(len(SPECIAL), len(VOCABULARY), tokens.shape), tokens
    )


def build(folder: Path, settings: Settings) -> dict[str, float]:
    """Fills an empty folder; returns the loss at the end."""
    problems = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    random.Random(settings.seed).shuffle(problems)
    parts = {"validation": problems[: settings.validation_rows], "train": problems[settings.validation_rows :]}
    for name, part in parts.items():
        rows = [row for problem in part for row, _ in rows_of(problem)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    last = 0.0
    with reproducible(settings.seed):
        model = tiny_qwen2(settings, len(VOCABULARY), context=256)
        table = encode([example for problem in parts["train"] for example in rows_of(problem)])

        def loss(step: int) -> Tensor:
            nonlocal last
            tokens = table[torch.randint(len(table), (settings.batch_size,))]
            if step >= settings.learn_steps:
                tokens = misprint(tokens, settings.misprint_rate)
            logits = model(tokens[:, :-1], use_cache=False).logits[:, PROMPT_TOKENS - 1 :]
            value = F.cross_entropy(logits.flatten(0, 1), tokens[:, PROMPT_TOKENS:].flatten(), ignore_index=PAD)
            last = value.item()
            return value

        teach(model, settings.learn_steps + settings.misprint_steps, settings.learning_rate, loss)
    model.save_pretrained(folder / "model")
    make_tokenizer(VOCABULARY).save_pretrained(folder / "model")
    return {"last_loss": last}


def make(out: Path = DEFAULT_OUT, force: bool = False, settings: Settings = Settings()) -> Path:
    return make_folder(out, settings, build, force)


if __name__ == "__main__":
    command_line("Makes the embedded model of three domains and its prompt files (about a minute).", DEFAULT_OUT, make)
