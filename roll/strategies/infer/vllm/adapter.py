"""Adapters on their way into vLLM: verified in this process, handed over as a folder of peft's form, which vLLM loads in place.

The policy is one adapter of vLLM's, under one id for the whole run: all requests name it, and what runs goes on under the new
version or is prefilled again, exactly as when whole weights are replaced. The base is loaded once.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from roll.distributed.own_folder import OwnFolder
from roll.weights.adapter import BASE, A, AdapterSource, B, BaseWeights, adapted_weights, is_adapter
from roll.weights.bucket import Bucket, WeightManifest


class ReceivedAdapters:
    """Buckets of one version, kept until the engine takes them. Thread-safe: buckets may arrive on any thread."""

    def __init__(self, source: AdapterSource) -> None:
        self._base = BaseWeights(Path(source.base))
        self._rank = source.rank
        self._folder = OwnFolder("adapter")
        self.start = Path(source.start) if source.start else self._write("start", self._without_effect())
        """The adapters that the engine has before its first update."""
        self._lock = threading.Lock()
        self._version: int | None = None
        self._buckets: dict[tuple[str, ...], Bucket] = {}

    def receive(self, version: int, bucket: Bucket) -> None:
        """`ValueError` if the bucket is corrupt or not of adapters of the base; nothing is kept then. One of another version than
        the one before begins a new set."""
        bucket.verify()
        if not is_adapter(bucket.tensors):
            raise ValueError("whole weights were sent to an engine that takes adapters")
        self._base.check(bucket.tensors, self._rank)
        copy = Bucket({name: tensor.clone() for name, tensor in bucket.tensors.items()}, bucket.checksum)
        with self._lock:
            if version != self._version:
                self._version, self._buckets = version, {}
            names = set(copy.tensors)
            self._buckets = {held: part for held, part in self._buckets.items() if names.isdisjoint(held)}
            self._buckets[tuple(copy.tensors)] = copy

    def take(self, manifest: WeightManifest) -> list[str]:
        """The folder with this version's adapters, valid until `forget`. `ValueError` unless exactly what the manifest names was
        received, intact."""
        with self._lock:
            checksums = [bucket.checksum for bucket in self._buckets.values()]
            names = [name for held in self._buckets for name in held]
            manifest.check(self._version, names, checksums)
            adapted_weights(names)
            tensors = {name: tensor for bucket in self._buckets.values() for name, tensor in bucket.tensors.items()}
            return [str(self._write("update", tensors))]

    def forget(self) -> None:
        with self._lock:
            self._version, self._buckets = None, {}
            shutil.rmtree(self._folder.path / "update", ignore_errors=True)

    def _without_effect(self) -> dict[str, Tensor]:
        """The adapter of a policy that equals its base: zeros on one layer, because vLLM takes no empty adapter."""
        shapes = self._base.shapes
        layer = next((name for name, shape in shapes.items() if name.endswith("_proj.weight") and len(shape) == 2), None)
        if layer is None:
            raise ValueError(f"no layer of '{self._base.folder}' is of a kind that vLLM adapts: write lora_update: merged")
        (out, inner), path = shapes[layer], layer.removesuffix(".weight")
        return {path + A: torch.zeros(self._rank, inner), path + B: torch.zeros(out, self._rank)}

    def _write(self, name: str, adapters: Mapping[str, Tensor]) -> Path:
        folder = self._folder.path / name
        folder.mkdir(exist_ok=True)
        save_file({f"base_model.model.{k}": v for k, v in adapters.items() if k != BASE}, folder / "adapter_model.safetensors")
        # The scale is in B.
        adapter_config = {"peft_type": "LORA", "r": self._rank, "lora_alpha": self._rank, "target_modules": []}
        (folder / "adapter_config.json").write_text(json.dumps(adapter_config))
        return folder


def lora_request(folder: Path | str, replace: bool = False) -> Any:
    """vLLM's name for the policy's adapters. `replace`: loads them from the folder in the place of those it has."""
    from vllm.lora.request import LoRARequest

    return LoRARequest("policy", 1, str(folder), load_inplace=replace)
