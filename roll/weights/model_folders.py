"""Models in Hugging Face folders as versions that engines pull: each engine reads the tensors from the folder itself."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from roll.weights.bucket import Bucket, WeightManifest, make_buckets, manifest_of
from roll.weights.directory import BucketFile
from roll.weights.folder_files import weight_files
from roll.weights.store import Receive


@dataclass(frozen=True, slots=True)
class FolderBucket(BucketFile):
    """Some of the tensors in a file of a model, as a type that engines compute in."""

    dtype: str

    def read(self) -> Bucket:
        tensors = dict(_tensors(Path(self.path), self.names, self.dtype))
        return Bucket(tensors, self.checksum)


class ModelFolders:
    """A `WeightSource`."""

    def __init__(self, folders: Mapping[int, Path], dtype: str, bucket_bytes: int) -> None:
        """`folders`: of each version, on a file system that the engines see, too. `dtype`: what engines compute in."""
        self._folders = folders
        self._dtype = dtype
        self._bucket_bytes = bucket_bytes
        self._read: dict[int, list[FolderBucket]] = {}
        self._reading = asyncio.Lock()

    async def pull(self, version: int, into: Receive) -> WeightManifest:
        async with self._reading:
            if version not in self._read:
                self._read[version] = await asyncio.to_thread(self._buckets, self._folders[version])
        for bucket in self._read[version]:
            await into(version, bucket)
        return self.manifest(version)

    def manifest(self, version: int) -> WeightManifest:
        """Of a version that was pulled before."""
        return manifest_of(version, self._read[version])

    async def retain(self, versions: Collection[int]) -> None:
        """The folders are others'."""

    def _buckets(self, folder: Path) -> list[FolderBucket]:
        return [
            FolderBucket(str(path), bucket.names, bucket.checksum, bucket.nbytes, self._dtype)
            for path in weight_files(folder)
            for bucket in make_buckets(_tensors(path, None, self._dtype), self._bucket_bytes)
        ]


def _tensors(path: Path, names: Collection[str] | None, dtype: str) -> Iterator[tuple[str, Tensor]]:
    """Tensors of a file, one at a time; integers keep their type. `names`: None for all. Raises `ValueError`."""
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys() if names is None else names:
                tensor = file.get_tensor(name)
                yield name, tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor
    except (OSError, SafetensorError) as error:
        raise ValueError(f"the weights in '{path}' cannot be read: {error}") from error
