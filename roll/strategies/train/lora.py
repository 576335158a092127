"""LoRA (arXiv 2106.09685): W + (lora_alpha / r)·B·A with W frozen and A [r, in], B [out, r] trained, through peft's layers.

The model keeps its class and its paths; an adapted linear layer `<path>` holds `<path>.base_layer.*`,
`<path>.lora_A.default.weight` and `<path>.lora_B.default.weight`. What leaves the trainer has the merged weights under the
model's own names, or is the adapters alone (`roll.core.weights.adapter`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from roll.core.weights import adapter
from roll.strategies.train.checkpoint_files import Share
from roll.strategies.train.saved_adapters import ADAPTER, BASE, WEIGHTS, target_names

_A, _B, _BASE = ".lora_A.default.weight", ".lora_B.default.weight", ".base_layer."
TOWERS = r"(.*\.)?(visual|vision_model)\..*"
"""Modules that see, in models that do: they have no adapters."""
_PEFT_PREFIX = "base_model.model."


class Adapters:
    def __init__(self, model: nn.Module, target: str, rank: int, alpha: float) -> None:
        """Adds adapters to a model in place and freezes all else. B starts at 0, so the model computes what it did.

        Args:
            target: names of linear layers separated by commas, a regular expression of whole paths, or `all-linear`.

        Raises:
            ValueError: `target` fits no linear layer, or one whose weights are tied to the embeddings.
        """
        names = target_names(target)
        sees = any(re.fullmatch(TOWERS, name) for name, _ in model.named_modules())
        adapters = {
            "r": rank,
            "lora_alpha": alpha,
            "target_modules": names or target,
            "exclude_modules": TOWERS if sees else None,
        }
        self.config = LoraConfig(**adapters, task_type="CAUSAL_LM")  # type: ignore[arg-type]
        linear = sorted({name.rsplit(".", 1)[-1] for name, m in model.named_modules() if isinstance(m, nn.Linear)})
        paths = [f".{name}" for name, _ in model.named_modules()]
        if unknown := [name for name in names if not any(path.endswith(f".{name}") for path in paths)]:
            raise ValueError(f"lora_target: no layer '{unknown[0]}'; linear layers: {', '.join(linear)}")
        try:
            inject_adapter_in_model(self.config, model)
        except ValueError as error:
            raise ValueError(f"lora_target '{target}' fits no layer; linear layers: {', '.join(linear)}") from error
        if isinstance(targets := self.config.target_modules, set):  # peft writes it as it lies, in another order in each process
            self.config.target_modules = sorted(targets)
        self.scale = alpha / rank
        layers = {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
        if other := [name for name, module in layers.items() if not isinstance(module.get_base_layer(), nn.Linear)]:
            raise ValueError(f"lora_target '{target}' names '{other[0]}', which is not a linear layer")
        embeddings = model.get_input_embeddings().weight  # type: ignore[operator]
        if tied := [name for name, module in layers.items() if module.get_base_layer().weight is embeddings]:
            raise ValueError(f"lora_target '{target}' names '{tied[0]}', whose weights are tied to the input embeddings")
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(_is_adapter(name))
            if parameter.requires_grad:
                parameter.data = parameter.data.float()

    def merged(self, named: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Converts the adapted model's whole tensors to merged ones, [out, in] float32 where adapted, under the names that the
        model has without adapters. Holds one layer at a time, and leaves out adapters whose layer is not there."""
        pending: dict[str, Tensor] = {}
        for name, tensor in named:
            if name.endswith(f"{_BASE}weight"):
                pending[name.removesuffix(f"{_BASE}weight")] = tensor
            elif not _is_adapter(name):
                yield name.replace(_BASE, "."), tensor
            elif (path := _layer(name)) in pending and name.endswith(_A):
                pending[name] = tensor
            elif path in pending:
                yield f"{path}.weight", adapter.merge(pending.pop(path), pending.pop(path + _A), self.scale * tensor.float())

    def alone(self, named: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Converts the adapters' whole tensors to the tensors of a weight update."""
        for name, tensor in named:
            if name.endswith(_A):
                yield name.replace(_A, adapter.A), tensor.float()
            elif name.endswith(_B):
                yield name.replace(_B, adapter.B), self.scale * tensor.float()

    def share(self, rank: int, ranks: int) -> Share:
        return _Share(rank, ranks)

    def save(self, directory: Path, tensors: Mapping[str, Tensor], base: Path) -> None:
        """Writes the adapted model's whole float32 tensors as a folder that peft (and engines that serve adapters) can read.
        `base`: the model folder that they were trained upon."""
        folder = directory / ADAPTER
        folder.mkdir(exist_ok=True)
        named = {_PEFT_PREFIX + name.replace(".default.", "."): t for name, t in tensors.items() if _is_adapter(name)}
        save_file(named, folder / WEIGHTS, metadata={"format": "pt"})  # of two entries the order would be that of chance
        (folder / BASE).write_text(json.dumps({"fingerprint": adapter.BaseWeights(base).fingerprint}))
        self.config.save_pretrained(str(folder))

    def load(self, directory: Path, trained: Collection[str]) -> dict[str, Tensor]:
        """The adapters of a checkpoint under the adapted model's names. `trained`: the names that this model has. `ValueError` if
        the checkpoint has no adapters, or has adapters of more layers or of another scale."""
        folder = directory / ADAPTER
        if not (folder / WEIGHTS).is_file():
            raise ValueError(f"checkpoint '{directory}' was saved without LoRA; remove lora_target, or train its model folder")
        saved = LoraConfig.from_pretrained(str(folder))
        if saved.lora_alpha / saved.r != self.scale:
            message = f"lora_alpha / lora_rank is {self.scale:g}, that of checkpoint '{directory}' {saved.lora_alpha / saved.r:g}"
            raise ValueError(message)
        saved_tensors = load_file(folder / WEIGHTS)
        tensors = {name.removeprefix(_PEFT_PREFIX).replace(".weight", ".default.weight"): t for name, t in saved_tensors.items()}
        if more := sorted(tensors.keys() - set(trained)):
            raise ValueError(f"checkpoint '{directory}' has adapters of '{_layer(more[0])}', too: more was trained (lora_target)")
        return tensors


class _Share(Share):
    """Shares that keep merged tensors together; the first rank has all adapters besides, for they are one file."""

    def _mine(self, name: str, tensor: Tensor) -> bool:
        return super()._mine(name, tensor) or (self._rank == 0 and _is_adapter(name))

    def _layer(self, name: str) -> str:
        path = _layer(name)
        return path if path != name else super()._layer(name)


def _is_adapter(name: str) -> bool:
    return name.endswith((_A, _B))


def _layer(name: str) -> str:
    """The path of the adapted layer that a tensor, or a moment of one, is of; the whole name of any other."""
    return name.partition(_BASE)[0].partition(_A)[0].partition(_B)[0]
