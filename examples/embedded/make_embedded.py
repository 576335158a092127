"""Makes the embedded task: a tiny real language model that is noisy at two-digit addition, and its prompt files.

`python examples/embedded/make_embedded.py [--out DIR] [--force]` writes `model/` (Qwen2 architecture, safetensors, with its
tokenizer), `train.jsonl` and `validation.jsonl`. Nothing is downloaded. The model is first taught to add, then to misprint: it
knows the answer (greedy decoding is right) but rarely says it (sampling is wrong), which is what reinforcement learning can mend.

Invariant: the folder is complete or absent. It is written aside and renamed, and `manifest.json` (settings and SHA-256 of every
file) decides whether it has to be made again. The same settings and torch version give the same bytes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from made_folder import command_line, make_folder
from tiny_model import EOS, PAD, SPECIAL, reproducible, teach, tiny_qwen2
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

DEFAULT_OUT = Path(__file__).resolve().parent / "cache"
VOCABULARY = [*SPECIAL, *"0123456789", "+", "=", " "]
ZERO, NINE = VOCABULARY.index("0"), VOCABULARY.index("9")
PROMPT_TOKENS = len("ab+cd=")
ANSWER_TOKENS = len("198") + 1
"""Up to three digits and the end of sequence."""
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"

Problem = tuple[int, int]


@dataclass(frozen=True)
class Settings:
    """All that the result depends on."""

    format: int = 2
    """Raised when the maker itself changes."""
    seed: int = 42
    validation_rows: int = 200
    hidden_size: int = 128
    intermediate_size: int = 256
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    learn_steps: int = 450
    """Optimiser steps on right answers."""
    misprint_steps: int = 300
    """Optimiser steps on misprinted ones."""
    misprint_rate: float = 0.25
    """Chance that a digit of the answer is replaced by another one; about half of the answers are then wrong."""
    batch_size: int = 128
    learning_rate: float = 3e-3


def answer(problem: Problem) -> str:
    return str(sum(problem))


def split_problems(settings: Settings) -> tuple[list[Problem], list[Problem]]:
    """All two-digit additions as (train, validation), disjoint."""
    problems = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    random.Random(settings.seed).shuffle(problems)
    return problems[settings.validation_rows :], problems[: settings.validation_rows]


def row(problem: Problem) -> dict[str, Any]:
    """A row of a prompt file, in ROLL's form."""
    a, b = problem
    prompt = f"{a}+{b}="
    return {
        "id": f"add-{a}-{b}",
        "source": "embedded",
        "difficulty": int(a % 10 + b % 10 > 9) + int(a + b > 99),
        "prompt": prompt,
        "messages": json.dumps([{"role": "user", "content": prompt}]),
        "ground_truth": answer(problem),
        "tag": "arithmetic",
    }


def make_tokenizer(vocabulary: Sequence[str] = VOCABULARY) -> PreTrainedTokenizerFast:
    """One token a character."""
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
        model_max_length=256,
    )


def make_model(settings: Settings) -> Qwen2ForCausalLM:
    model: Qwen2ForCausalLM = tiny_qwen2(settings, len(VOCABULARY), context=256)
    return model


def encode(problems: list[Problem]) -> Tensor:
    """[P, PROMPT_TOKENS + ANSWER_TOKENS] int64: prompt, answer, end of sequence, padding."""
    ids = {token: i for i, token in enumerate(VOCABULARY)}
    table = torch.full((len(problems), PROMPT_TOKENS + ANSWER_TOKENS), PAD)
    for i, problem in enumerate(problems):
        text = f"{problem[0]}+{problem[1]}={answer(problem)}"
        table[i, : len(text) + 1] = torch.tensor([*(ids[c] for c in text), EOS])
    return table


def misprint(tokens: Tensor, rate: float) -> Tensor:
    """Replaces each digit of the answers, with chance `rate`, by another digit chosen uniformly."""
    is_digit = (tokens >= ZERO) & (tokens <= NINE)
    is_digit[:, :PROMPT_TOKENS] = False
    other = (tokens - ZERO + torch.randint(1, 10, tokens.shape)) % 10 + ZERO
    return torch.where(is_digit & (torch.rand(tokens.shape) < rate), other, tokens)


def train(model: Qwen2ForCausalLM, problems: list[Problem], settings: Settings) -> None:
    """Next-token prediction on the answers: right ones first, then misprinted ones."""
    table = encode(problems)

    def loss(step: int) -> Tensor:
        tokens = table[torch.randint(len(table), (settings.batch_size,))]
        if step >= settings.learn_steps:
            tokens = misprint(tokens, settings.misprint_rate)
        logits = model(tokens[:, :-1], use_cache=False).logits[:, PROMPT_TOKENS - 1 :]
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, PROMPT_TOKENS:].flatten(), ignore_index=PAD)

    teach(model, settings.learn_steps + settings.misprint_steps, settings.learning_rate, loss)


@torch.no_grad()
def accuracies(model: Qwen2ForCausalLM, problems: list[Problem]) -> dict[str, float]:
    """Share of the problems answered exactly by greedy decoding, and by a sample at temperature 1 in expectation: what the model
    gives to the tokens of the right answer says both."""
    table = encode(problems)
    answers = table[:, PROMPT_TOKENS:]
    log_probs = model(table[:, :-1], use_cache=False).logits[:, PROMPT_TOKENS - 1 :].log_softmax(-1)
    greedy = (log_probs.argmax(-1) == answers) | (answers == PAD)
    sampled = log_probs.gather(-1, answers[..., None])[..., 0].masked_fill(answers == PAD, 0.0).sum(-1).exp()
    return {"greedy_accuracy": greedy.all(-1).float().mean().item(), "sampled_accuracy": sampled.mean().item()}


def write_rows(path: Path, problems: list[Problem]) -> None:
    path.write_text("".join(json.dumps(row(problem)) + "\n" for problem in problems), encoding="utf-8")


def build(folder: Path, settings: Settings, model_of: Callable[[Any], Any] = make_model) -> dict[str, float]:
    """Fills an empty folder; returns what was measured. `model_of`: makes an untaught model of the settings."""
    train_problems, validation_problems = split_problems(settings)
    with reproducible(settings.seed):
        model = model_of(settings)
        train(model, train_problems, settings)
        measured = accuracies(model, validation_problems)
    model.save_pretrained(folder / "model")
    make_tokenizer().save_pretrained(folder / "model")
    write_rows(folder / "train.jsonl", train_problems)
    write_rows(folder / "validation.jsonl", validation_problems)
    return measured


def make(out: Path = DEFAULT_OUT, force: bool = False, settings: Settings = Settings()) -> Path:
    """Makes the folder `out` unless it is there already; returns it. Raises `FileExistsError` as `make_folder` does."""
    return make_folder(out, settings, build, force)


if __name__ == "__main__":
    command_line("Makes the embedded model and its prompt files (about half a minute).", DEFAULT_OUT, make)
