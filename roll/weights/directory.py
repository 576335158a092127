"""Policy versions as files: a folder of safetensors each, and a manifest that is there when, and only when, a version is whole.

The folder has to lie where trainers and engines both see it. All that is known of a version is in its files.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from roll.weights.bucket import Bucket, WeightManifest
from roll.weights.store import BucketRef, Receive

MANIFEST, VERSION, DOOMED = "manifest.json", "version-", "deleted-"


@dataclass(frozen=True, slots=True)
class BucketFile:
    """A bucket that lies in a file."""

    path: str
    names: tuple[str, ...]
    checksum: int
    nbytes: int

    @classmethod
    def write(cls, bucket: Bucket, path: Path) -> BucketFile:
        save_file(bucket.tensors, path)
        return cls(str(path), tuple(bucket.tensors), bucket.checksum, bucket.nbytes)

    def read(self) -> Bucket:
        """Reads the bucket; `verify` of the bucket detects changed bytes. `ValueError` if the file has other tensors, or is no
        bucket file."""
        try:
            tensors = load_file(self.path)
        except (OSError, SafetensorError) as error:
            raise ValueError(f"weight bucket '{self.path}' cannot be read: {error}") from error
        if tensors.keys() != set(self.names):
            raise ValueError(f"weight bucket '{self.path}' has tensors {sorted(tensors)} instead of {sorted(self.names)}")
        return Bucket({name: tensors[name] for name in self.names}, self.checksum)


class WeightFolder:
    """The versions in a folder, `version-<number>` each, for a process that reads what another one publishes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def latest(self) -> int:
        return max(self._published(), default=-1)

    def has(self, version: int) -> bool:
        return version in self._published()

    async def pull(self, version: int, into: Receive) -> WeightManifest:
        for file in self._files(version):
            await into(version, file)
        return self.manifest(version)

    def manifest(self, version: int) -> WeightManifest:
        files = self._files(version)
        names = [name for file in files for name in file.names]
        return WeightManifest(version, names, [file.checksum for file in files], sum(file.nbytes for file in files))

    async def retain(self, versions: Collection[int]) -> None:
        """The publisher deletes what nobody needs."""

    def _of(self, version: int) -> Path:
        return self._folder / f"{VERSION}{version}"

    def _published(self) -> set[int]:
        return {int(path.parent.name.removeprefix(VERSION)) for path in self._folder.glob(f"{VERSION}*/{MANIFEST}")}

    def _files(self, version: int) -> list[BucketFile]:
        folder = self._of(version)
        try:
            rows = json.loads((folder / MANIFEST).read_text())["buckets"]
        except FileNotFoundError:
            raise KeyError(f"version {version} is not in {self._folder}") from None
        return [BucketFile(str(folder / name), tuple(names), checksum, nbytes) for name, names, checksum, nbytes in rows]


class DirectoryWeightStore(WeightFolder):
    """A `WeightStore` whose versions are files; those that are needed no more are deleted."""

    def __init__(self, folder: Path, newest: int = -1) -> None:
        """Takes the folder over: what an earlier run left there is deleted, but for versions up to `newest`."""
        super().__init__(folder)
        folder.mkdir(parents=True, exist_ok=True)
        kept = {self._of(version) for version in self._published() if version <= newest}
        for old in {*folder.glob(f"{VERSION}*"), *folder.glob(f"{DOOMED}*")} - kept:
            shutil.rmtree(old)

    def begin(self, version: int) -> Path:
        folder = self._of(version)
        folder.mkdir()
        return folder

    async def publish(self, manifest: WeightManifest, buckets: list[BucketRef]) -> None:
        latest = self.latest()
        if manifest.version <= latest:
            raise ValueError(f"version {manifest.version} published after version {latest}")
        rows = [[Path(file.path).name, file.names, file.checksum, file.nbytes] for file in buckets]
        path = self._of(manifest.version) / MANIFEST
        unfinished = path.with_suffix(".partial")
        unfinished.write_text(json.dumps({"version": manifest.version, "buckets": rows}))
        os.replace(unfinished, path)

    async def retain(self, versions: Collection[int]) -> None:
        # Renamed folders are gone at once; deleting their files may take a while on a network file system.
        doomed = [self._of(version).rename(self._folder / f"{DOOMED}{version}") for version in self._published() - set(versions)]
        for folder in doomed:
            await asyncio.to_thread(shutil.rmtree, folder)
