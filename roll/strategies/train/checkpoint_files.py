"""The files of a training checkpoint and of a model folder: JSON and safetensors only, nothing pickled.

model/                  Hugging Face folder: config, generation config, tokenizer, float32 master weights (LoRA: merged)
adapter/                LoRA only: the adapters' float32 master weights, as peft reads them
optimizer.safetensors   AdamW moments, `<parameter>.exp_avg` and `<parameter>.exp_avg_sq`
trainer.json            counters
rng-<rank>.safetensors  state of each rank's random generators

Of several ranks each writes files of its own, `model-<rank>-<number>.safetensors` and `optimizer-<rank>.safetensors`, with whole
tensors, so that any number of ranks reads them; `folder_files.write_index` then completes the model's folder.

They are written from a `Snapshot`, which a rank keeps in host memory of its own, while the next steps change the model.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.core_model_loading import revert_weight_conversion

from roll.strategies.train.tensor_files import FilesOf, write_tensors
from roll.transports.experts import FUSED, published

MODEL = "model"
OPTIMIZER = "optimizer"
"""The stem of its files."""
TRAINER = "trainer.json"


@dataclass(slots=True)
class TrainerState:
    optimizer_step: int = 0
    """Optimiser steps taken; also the position in the learning-rate schedule."""
    skipped_steps: int = 0
    """Steps not taken because the gradient was not finite."""

    def count(self, role: str, norm: float, lr: float) -> dict[str, float]:
        """Counts a step, which is skipped unless its gradient's norm is finite. Returns its metrics."""
        if math.isfinite(norm):
            self.optimizer_step += 1
        else:
            self.skipped_steps += 1
        return {f"{role}/grad_norm": norm, f"{role}/lr": lr, f"{role}/skipped_steps": float(self.skipped_steps)}

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> TrainerState:
        return cls(**{name: int(value) for name, value in json.loads(path.read_text()).items()})


def on_meta_device(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """A copy of the model in `dtype` without contents, for `write_model`: a thread that writes must not touch the model that
    trains (ZeRO-3 gathers what is looked at)."""
    tensors = chain(model.parameters(), model.buffers())
    kinds = ((tensor, dtype if tensor.is_floating_point() else tensor.dtype) for tensor in tensors)
    return copy.deepcopy(model, {id(tensor): torch.empty_like(tensor, dtype=kind, device="meta") for tensor, kind in kinds})


def optimizer_files(directory: Path) -> list[Path]:
    """`ValueError` if there is none."""
    if not (found := sorted(directory.glob(f"{OPTIMIZER}*.safetensors"))):
        raise ValueError(f"checkpoint '{directory}' has no {OPTIMIZER}*.safetensors")
    return found


def write_model(
    path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, weights: dict[str, Tensor], files_of: FilesOf
) -> None:
    """A Hugging Face folder with these weights, or a rank's part of it. `model`: may be `on_meta_device`."""
    path.mkdir(exist_ok=True)
    if divisible(model):
        kind = str(model.config.model_type)
        write_tensors(path, (part for whole in weights.items() for part in published(kind, *whole)), files_of)
        if files_of.first:
            model.config.dtype, model.config.architectures = str(model.dtype).removeprefix("torch."), [type(model).__name__]
            model.config.save_pretrained(path)
            if model.can_generate():
                model.generation_config.save_pretrained(path)
    elif files_of.first:
        model.save_pretrained(path, state_dict=weights)
    if files_of.first:
        tokenizer.save_pretrained(path)


def divisible(model: PreTrainedModel) -> bool:
    """True if ranks can write files of the tensors that they have: transformers' files of the architecture have the names and
    tensors of the model's state, or experts one by one."""
    state = model.state_dict()
    if model._keys_to_ignore_on_save:
        return False
    return model.config.model_type in FUSED or revert_weight_conversion(model, dict(state)).keys() == state.keys()


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


Named = Iterable[tuple[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    files_of: FilesOf
    weights: dict[str, Tensor]
    """This rank's share of the model's tensors, each whole and in its master precision."""
    moments: dict[str, Tensor]
    """This rank's share of AdamW's `<parameter>.<moment>`, each whole; nothing before the first step."""
    rng: dict[str, Tensor]
    state: TrainerState | None
    """None for a frozen model."""

    @classmethod
    def take(
        cls,
        files_of: FilesOf,
        share: Share,
        device: torch.device,
        weights: Named,
        moments: Named,
        state: TrainerState | None,
    ) -> Snapshot:
        """`weights`, `moments`: whole tensors, gathered one at a time while they are asked for; every rank asks for all."""
        held = share.copies(weights), share.copies(moments)
        return cls(files_of, *held, rng_state(device), None if state is None else replace(state))

    def write_training(self, directory: Path, moments: dict[str, Tensor]) -> None:
        """Writes all files but the model's. `moments`: those of the snapshot, under the names that they are saved under."""
        if self.state is None:
            return
        if moments:
            save_file(moments, directory / self.files_of.named(OPTIMIZER))
        if self.files_of.first:
            self.state.write(directory / TRAINER)
        save_file(self.rng, rng_path(directory, self.files_of.rank))


class Share:
    """Divides tensors that ranks go through together: those of the next layer are for the rank that has the fewest bytes."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank = rank
        self._bytes = [0] * ranks
        self._owners: dict[str, int] = {}

    def copies(self, named: Named) -> dict[str, Tensor]:
        """Copies of this rank's, on the CPU."""
        return {n: tensor.detach().to("cpu", copy=True).contiguous() for n, tensor in named if self._mine(n, tensor)}

    def _mine(self, name: str, tensor: Tensor) -> bool:
        owner = self._owners.setdefault(self._layer(name), self._bytes.index(min(self._bytes)))
        self._bytes[owner] += tensor.nbytes
        return owner == self._rank

    def _layer(self, name: str) -> str:
        return name.rpartition(".")[0]


class AllOnFirst(Share):
    """A share for tensors that have to be together."""

    def _mine(self, name: str, tensor: Tensor) -> bool:
        return self._rank == 0
