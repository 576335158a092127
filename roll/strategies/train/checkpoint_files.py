"""The files of a training checkpoint and of a model folder: JSON and safetensors only, nothing pickled.

model/                  Hugging Face folder: config, generation config, tokenizer, float32 master weights (LoRA: merged)
adapter/                LoRA only: the adapters' float32 master weights, as peft reads them
optimizer.safetensors   full (unsharded) AdamW moments, `<parameter>.exp_avg` and `<parameter>.exp_avg_sq`
trainer.json            counters
rng-<rank>.safetensors  state of each rank's random generators
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

MODEL = "model"
OPTIMIZER = "optimizer.safetensors"
TRAINER = "trainer.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")


@dataclass(slots=True)
class TrainerState:
    optimizer_step: int = 0
    """Optimiser steps taken; also the position in the learning-rate schedule."""
    skipped_steps: int = 0
    """Steps not taken because the gradient was not finite."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> TrainerState:
        return cls(**{name: int(value) for name, value in json.loads(path.read_text()).items()})


def check_model_folder(path: Path) -> None:
    """Raises `FileNotFoundError`, saying what is missing, unless `path` is a folder with a model and its tokenizer."""
    if not path.is_dir():
        raise FileNotFoundError(f"model folder '{path}' does not exist (models are read from local folders only)")
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"model folder '{path}' has no config.json")
    if not any(path.glob("*.safetensors")):
        raise FileNotFoundError(f"model folder '{path}' has no weights (*.safetensors)")
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise FileNotFoundError(f"model folder '{path}' has no tokenizer (one of {', '.join(TOKENIZER_FILES)})")


def load_model(path: Path, dtype: torch.dtype, attn_implementation: str) -> PreTrainedModel:
    """A causal LM on the CPU, from safetensors in a local folder."""
    disable_progress_bar()  # it would be drawn over the run's own display
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, attn_implementation=attn_implementation, local_files_only=True, use_safetensors=True
    )
    return model


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path, local_files_only=True)
    return tokenizer


def write_model(path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, weights: dict[str, Tensor]) -> None:
    """A Hugging Face folder with these weights, whatever the model itself holds at the moment."""
    model.save_pretrained(path, state_dict=weights)
    tokenizer.save_pretrained(path)


def rng_path(directory: Path, rank: int) -> Path:
    return directory / f"rng-{rank}.safetensors"


def rng_state(device: torch.device) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_rng(path: Path, device: torch.device) -> None:
    """Without a file of this rank (saved by fewer ranks) the generators stay as they were seeded."""
    if not path.is_file():
        return
    state = load_file(path)
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
