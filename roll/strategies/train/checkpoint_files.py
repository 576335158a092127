"""The files of a training checkpoint and of a model folder: JSON and safetensors only, nothing pickled.

model/                  Hugging Face folder: config, generation config, tokenizer, float32 master weights (LoRA: merged)
adapter/                LoRA only: the adapters' float32 master weights, as peft reads them
optimizer.safetensors   full (unsharded) AdamW moments, `<parameter>.exp_avg` and `<parameter>.exp_avg_sq`
trainer.json            counters
rng-<rank>.safetensors  state of each rank's random generators
"""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from roll.strategies.model_folder import check_model_folder, load_model, load_tokenizer, stored_dtype

__all__ = [
    "MODEL",
    "OPTIMIZER",
    "TRAINER",
    "TrainerState",
    "check_model_folder",
    "hollow",
    "load_model",
    "load_tokenizer",
    "restore_rng",
    "rng_path",
    "rng_state",
    "stored_dtype",
    "write_model",
]

MODEL = "model"
OPTIMIZER = "optimizer.safetensors"
TRAINER = "trainer.json"


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


def hollow(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """A copy of the model in `dtype` without contents, for `write_model`: a thread that writes must not touch the model that
    trains (ZeRO-3 gathers what is looked at)."""
    tensors = chain(model.parameters(), model.buffers())
    kinds = ((tensor, dtype if tensor.is_floating_point() else tensor.dtype) for tensor in tensors)
    return copy.deepcopy(model, {id(tensor): torch.empty_like(tensor, dtype=kind, device="meta") for tensor, kind in kinds})


def write_model(path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, weights: dict[str, Tensor]) -> None:
    """A Hugging Face folder with these weights. `model`: may be `hollow`."""
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
    """Restores this rank's random generators. Without a file of this rank (saved by fewer ranks) the generators stay as they were
    seeded."""
    if not path.is_file():
        return
    state = load_file(path)
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
