"""New weights, or adapters, on their way into vLLM: verified in this process, handed to the engine's.

Tensors cannot go through the engine's own messages. Whole weights are anonymous memory files, which the engine opens under their
/proc path and maps without a copy. Adapters are a folder of peft's form, which vLLM loads in place: the policy is one adapter of
vLLM's, under one id for the whole run, which all requests name. What runs goes on under the new version or is prefilled again,
exactly as when whole weights are replaced. The base is loaded once.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from roll.core.weights.adapter import BASE, A, AdapterSource, B, BaseWeights, adapted_weights, is_adapter
from roll.core.weights.bucket import Bucket, Described, WeightManifest
from roll.core.weights.folder_files import weight_files
from roll.core.weights.received import ReceivedBuckets
from roll.platform.temp_folder import TempFolder
from roll.transports.lending import LentBucket, seal
from roll.transports.node_files import node_file, path_of, shared_file

HEAD = "lm_head.weight"


class StagedBuckets:
    """Buckets of one version, kept until the engine takes them. What the model consists of is read from its folder.

    Thread-safe: buckets may arrive on any thread."""

    def __init__(self, folder: Path, tied: bool, shapes: dict[str, list[int]] | None = None) -> None:
        """`folder`: a Hugging Face model folder; its weights' names and shapes are those that every version must have.
        `tied`: the output layer is the embedding, as the model's configuration says. `shapes`: where the folder's names are
        not those that the trainer sends."""
        self._shapes = shapes or BaseWeights(folder).shapes
        embedding = _embedding(list(self._shapes)) if tied else None
        self._aliases = {HEAD: embedding} if embedding else {}
        if embedding:
            self._shapes[HEAD] = self._shapes[embedding]
        self._lock = threading.Lock()
        self._files: ReceivedBuckets[int | LentBucket] = ReceivedBuckets()
        """Descriptors of memory files, and buckets that the engine has copied itself."""
        self._tied: dict[str, int] = {}
        """Name of a tied weight -> seal of the tensor that came under it."""
        self._served = [os.open(path, os.O_RDONLY) for path in weight_files(folder)]  # which may go with an old checkpoint
        """Files that are kept."""

    def receive(self, version: int, bucket: Bucket) -> None:
        """Keeps a bucket, by a copy unless there is a file of it. `ValueError` if it is corrupt or does not fit the model;
        nothing is kept then.

        A bucket of another version than the one before begins a new set; what was received of the other one is forgotten."""
        bucket.verify()
        self._refuse_misshapen({name: list(tensor.shape) for name, tensor in bucket.tensors.items()})
        tied = {name: int(seal(bucket.tensors[name])) for name in self._tied_names & bucket.tensors.keys()}
        with self._lock:
            self._make_room(version, bucket, tied)
            self._files.keep(bucket, self._file(bucket))

    def receive_lent(self, version: int, bucket: LentBucket) -> None:
        """Notes that the engine has a copy of a bucket. `ValueError` if it does not fit the model."""
        self._refuse_misshapen(bucket.lent.shapes)
        tied = {name: found for name, found in bucket.lent.seals.items() if name in self._tied_names}
        with self._lock:
            self._make_room(version, bucket, tied)
            self._files.keep(bucket, bucket)

    def take(self, manifest: WeightManifest) -> list[str]:
        """Paths of the files that hold this version's weights, valid until `forget`. `ValueError` unless exactly what the
        manifest names was received, intact, and it covers the model."""
        with self._lock:
            self._files.check(manifest)
            there = {self._aliases.get(name, name) for name in self._files.names}
            if missing := self._shapes.keys() - self._aliases.keys() - there:
                raise ValueError(f"weights of version {manifest.version} do not cover the model: {sorted(missing)} missing")
            return [path_of(file) for file in self._files.kept if isinstance(file, int)]

    @property
    def lent(self) -> list[str]:
        """Names of the weights that the engine has itself."""
        with self._lock:
            return [name for bucket in self._files.kept if isinstance(bucket, LentBucket) for name in bucket.names]

    def forget(self) -> None:
        """Frees the memory, but for the kept files."""
        with self._lock:
            _close(self._files.clear())
            self._tied = {}

    def keep(self) -> None:
        """Keeps the files taken until the next version's, for an engine that drops its weights while it sleeps."""
        with self._lock:
            _close(self._served)
            self._served, self._tied = [file for file in self._files.clear() if isinstance(file, int)], {}

    @property
    def served(self) -> list[str]:
        """Paths of the files that are kept, or of the model's own before there are any."""
        return list(map(path_of, self._served))

    def close(self) -> None:
        self.forget()
        self.keep()

    @property
    def _tied_names(self) -> set[str]:
        return {*self._aliases.keys(), *self._aliases.values()}

    def _refuse_misshapen(self, shapes: Mapping[str, list[int]]) -> None:
        for name, shape in shapes.items():
            if name not in self._shapes:
                raise ValueError(f"weight {name!r} is unknown to the model")
            if shape != self._shapes[name]:
                raise ValueError(f"weight {name!r} has shape {shape}, the model's has {self._shapes[name]}")

    def _make_room(self, version: int, bucket: Described, tied: dict[str, int]) -> None:
        if version == self._files.version:
            tied = self._tied | tied
        if len(set(tied.values())) > 1:
            raise ValueError(f"weights {sorted(tied)} are tied in the model but differ")
        _close(self._files.make_room(version, bucket))
        self._tied = tied

    def _file(self, bucket: Bucket) -> int:
        if self._aliases.keys().isdisjoint(bucket.tensors):
            return node_file(bucket)
        return shared_file({self._aliases.get(name, name): tensor for name, tensor in bucket.tensors.items()}, bucket.checksum)


def _close(kept: Iterable[int | LentBucket]) -> None:
    for file in kept:
        if isinstance(file, int):
            os.close(file)


def _embedding(names: list[str]) -> str | None:
    embeddings = [name for name in names if name.endswith("embed_tokens.weight")]
    return embeddings[0] if len(embeddings) == 1 else None


class ReceivedAdapters:
    """Buckets of one version, kept until the engine takes them. Thread-safe: buckets may arrive on any thread."""

    def __init__(self, source: AdapterSource) -> None:
        self._base = BaseWeights(Path(source.base))
        self._rank = source.rank
        self._folder = TempFolder("adapter")
        self.start = Path(source.start) if source.start else self._write("start", self._without_effect())
        """The adapters that the engine has before its first update."""
        self._lock = threading.Lock()
        self._copies: ReceivedBuckets[dict[str, Tensor]] = ReceivedBuckets()

    def receive(self, version: int, bucket: Bucket) -> None:
        """`ValueError` if the bucket is corrupt or not of adapters of the base; nothing is kept then. One of another version than
        the one before begins a new set."""
        bucket.verify()
        if not is_adapter(bucket.tensors):
            raise ValueError("whole weights were sent to an engine that takes adapters")
        self._base.check(bucket.tensors, self._rank)
        copy = {name: tensor.clone() for name, tensor in bucket.tensors.items()}
        with self._lock:
            self._copies.make_room(version, bucket)
            self._copies.keep(bucket, copy)

    def take(self, manifest: WeightManifest) -> list[str]:
        """The folder with this version's adapters, valid until `forget`. `ValueError` unless exactly what the manifest names was
        received, intact."""
        with self._lock:
            self._copies.check(manifest)
            adapted_weights(self._copies.names)
            tensors = {name: tensor for copy in self._copies.kept for name, tensor in copy.items()}
            return [str(self._write("update", tensors))]

    def forget(self) -> None:
        with self._lock:
            self._copies.clear()
            shutil.rmtree(self._folder.path / "update", ignore_errors=True)

    def close(self) -> None:
        self.forget()

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
