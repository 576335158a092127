"""Policy versions in a folder: a manifest each, which is there when, and only when, a version is whole, and its buckets as
safetensors files beside it; or the buckets stay in the trainer's memory, and the manifest says so.

The folder has to lie where trainers and engines both see it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TypedDict

from roll.core.distributed.backend import Backend
from roll.core.errors import Unreachable, VersionGone
from roll.core.weights.bucket import Bucket, BucketFile, WeightManifest
from roll.core.weights.store import BucketRef, Buckets, Link, Place, Receive
from roll.transports.bucket_server import BucketServer, ServedBucket, ServerAddress
from roll.transports.delta import WORTH, Chain

MANIFEST, VERSION, DOOMED = "manifest.json", "version-", "deleted-"
SERVER = "server.json"
"""File with the address of the trainer's buckets, for its user alone to read."""

logger = logging.getLogger(__name__)


class _Published(TypedDict):
    """A manifest file."""

    version: int
    run: str
    served: bool
    """True if the trainer serves the buckets; else they are files."""
    chained: bool
    """True if it is part of a chain (`roll.transports.delta`); a reader of the next one has to remember this one."""
    base: int | None
    """The version that this one is the changes of; None: it is whole."""
    buckets: list[tuple[str, list[str], int, int]]
    """File, names of tensors, checksum, bytes."""


class WeightFolder:
    """The versions in a folder, `version-<number>` each, for a process that reads those another one publishes."""

    def __init__(self, folder: Path, run_id: str = "") -> None:
        """`run_id`: of the run whose versions they are."""
        self._folder = folder
        self._run_id = run_id

    def latest(self) -> int:
        return max(self._published(), default=-1)

    def has(self, version: int) -> bool:
        return version in self._published()

    async def pull(self, version: int, into: Receive) -> WeightManifest:
        """Raises `Unreachable`, too, as the receiver may."""
        published = self._read(version)
        await Buckets(version, self._buckets(published)).hand_over(into)
        return _manifest(published)

    def manifest(self, version: int) -> WeightManifest:
        return _manifest(self._read(version))

    async def retain(self, versions: Collection[int]) -> None:
        """Leaves the deletion of versions to the publisher."""

    def is_chained(self, version: int) -> bool:
        return self._read(version).get("chained", False)

    def links(self, version: int, have: int | None = None) -> list[Link]:
        """Returns the links of the version, beginning with a whole one, or with the changes of the version that the caller has.
        Raises as `manifest` does."""
        base: int | None = version
        found: list[Link] = []
        while base is not None and base != have:
            found.append(Link(base, self._base(base)))
            base = found[-1].base
        return found[::-1]

    def _base(self, version: int) -> int | None:
        return self._read(version).get("base")

    def _of(self, version: int) -> Path:
        return self._folder / f"{VERSION}{version}"

    def _published(self) -> set[int]:
        return {int(path.parent.name.removeprefix(VERSION)) for path in self._folder.glob(f"{VERSION}*/{MANIFEST}")}

    def _read(self, version: int) -> _Published:
        """Raises `VersionGone`, `Unreachable` for a version that is not there yet, and `ValueError` for one of another run."""
        try:
            published: _Published = json.loads((self._of(version) / MANIFEST).read_text())
        except FileNotFoundError:
            if self.latest() <= version:  # the same: it has just come
                raise Unreachable(f"version {version} is not in {self._folder} yet") from None
            raise VersionGone(f"version {version} is not in {self._folder} any more") from None
        if (theirs := published.get("run", "")) != self._run_id:
            raise ValueError(f"version {version} in {self._folder} is of another run ({theirs}), not of {self._run_id}")
        return published

    def _buckets(self, published: _Published) -> list[BucketFile] | list[ServedBucket]:
        version, rows = published["version"], published["buckets"]
        if not published["served"]:
            return [BucketFile(str(self._of(version) / name), tuple(names), *sizes) for name, names, *sizes in rows]
        endpoint = ServerAddress.read(self._folder / SERVER)
        endpoint.check()
        return [ServedBucket(endpoint, version, number, tuple(names), *sizes) for number, (_, names, *sizes) in enumerate(rows)]


def _manifest(published: _Published) -> WeightManifest:
    rows = published["buckets"]
    names = [name for _, names, _, _ in rows for name in names]
    checksums, nbytes = [checksum for _, _, checksum, _ in rows], sum(nbytes for *_, nbytes in rows)
    return WeightManifest(published["version"], names, checksums, nbytes, published.get("base"))


class DirectoryWeightStore(WeightFolder):
    """A `WeightStore` whose versions are files; those that are needed no more are deleted."""

    def __init__(self, folder: Path, newest: int = -1, run_id: str = "", anchor_every: int = 1) -> None:
        """Takes the folder over: an earlier run's files there are deleted, but for this run's versions up to `newest`.
        `anchor_every`: versions of which one is whole, and the others are changes."""
        super().__init__(folder, run_id)
        self._chain = Chain(anchor_every)
        self._bases: dict[int, int | None] = {}
        """Bases of versions, as far as they are known: a manifest may be large."""
        folder.mkdir(parents=True, exist_ok=True)
        kept = {self._of(version) for version in self._published() if version <= newest and self._is_whole(version)}
        for old in {*folder.glob(f"{VERSION}*"), *folder.glob(f"{DOOMED}*")} - kept:
            shutil.rmtree(old)

    def _is_whole(self, version: int) -> bool:
        """True if it is this run's, and all its links are there."""
        try:
            return len(self.links(version)) > 0
        except (ValueError, Unreachable, VersionGone):
            return False

    def begin(self, version: int) -> Place | None:
        folder = self._of(version)
        folder.mkdir()
        return lambda rank, number: str(folder / f"{rank:03}-{number:05}.safetensors")

    def link(self, version: int) -> Link | None:
        return self._chain.link(version)

    async def publish(self, manifest: WeightManifest, buckets: Sequence[BucketRef]) -> None:
        names = [Path(file.path).name for file in buckets if isinstance(file, BucketFile)]
        self._announce(manifest, names, buckets, served=False)

    async def retain(self, versions: Collection[int]) -> None:
        # Renamed folders are gone immediately; deleting their files may take a while on a network file system.
        gone = sorted(self._published() - self._with_bases(versions), reverse=True)  # before what they are put together from
        doomed = [self._of(version).rename(self._folder / f"{DOOMED}{version}") for version in gone]
        for folder in doomed:
            await asyncio.to_thread(shutil.rmtree, folder)

    def close(self) -> None:
        """Leaves the folder's content."""

    def _base(self, version: int) -> int | None:
        if version not in self._bases:
            self._bases[version] = super()._base(version)
        return self._bases[version]

    def _with_bases(self, versions: Collection[int]) -> set[int]:
        """Returns those of the versions that are there, and the versions they are put together from."""
        return {link.version for version in self._published().intersection(versions) for link in self.links(version)}

    def _announce(self, manifest: WeightManifest, names: list[str], buckets: Sequence[BucketRef], served: bool) -> None:
        version, latest = manifest.version, self.latest()
        if version <= latest:
            raise ValueError(f"version {version} published after version {latest}")
        rows = [(name, list(each.names), each.checksum, each.nbytes) for name, each in zip(names, buckets, strict=True)]
        published: _Published = {
            "version": version,
            "run": self._run_id,
            "served": served,
            "chained": self._chain.every > 1,
            "base": manifest.base,
            "buckets": rows,
        }
        path = self._of(version) / MANIFEST
        unfinished = path.with_suffix(".partial")
        unfinished.write_text(json.dumps(published))
        os.replace(unfinished, path)
        self._bases[version] = manifest.base
        self._chain.published(manifest)
        if manifest.base is not None and self._chain.share > WORTH:
            message = "version %d: what has changed takes %.0f %% of a whole version's bytes: those that follow are whole until "
            logger.warning(message + "that is tried again (weight_anchor_interval)", version, 100 * self._chain.share)


class ServedWeightStore(DirectoryWeightStore):
    """A `WeightStore` whose manifests are files; the buckets stay where the trainer's ranks made them, and are served from there
    to engines of other processes. Those of an earlier process of the run are gone with it."""

    def __init__(
        self, folder: Path, newest: int, host: str, backend: Backend, run_id: str = "", anchor_every: int = 1, port: int = 0
    ) -> None:
        """`host`: this machine's address for the engines. Raises `OSError` if it is none."""
        super().__init__(folder, newest, run_id, anchor_every)
        self._held: dict[int, Sequence[BucketRef]] = {}
        self._backend = backend
        self._server = BucketServer(host, self._find, port)
        self._server.endpoint.write(folder / SERVER)

    def begin(self, version: int) -> None:
        return None

    def latest(self) -> int:
        return max(self._held, default=-1)

    def has(self, version: int) -> bool:
        return version in self._held

    async def publish(self, manifest: WeightManifest, buckets: Sequence[BucketRef]) -> None:
        version = manifest.version
        self._of(version).mkdir(exist_ok=True)
        self._announce(manifest, [f"{number:05}" for number in range(len(buckets))], buckets, served=True)
        self._held[version] = buckets

    async def retain(self, versions: Collection[int]) -> None:
        """Engines that look for an earlier process's versions learn that these are gone."""
        needed = self._with_bases(versions)
        self._held = {version: held for version, held in self._held.items() if version in needed}
        await super().retain(self._held)

    def _find(self, version: int, number: int) -> Bucket | None:
        """Finds a bucket for the server's threads."""
        held = self._held.get(version, ())
        if not 0 <= number < len(held):
            return None
        bucket: Bucket = self._backend.value(held[number].argument)
        return bucket

    def close(self) -> None:
        (self._folder / SERVER).unlink(missing_ok=True)
        self._server.close()
