"""Gathers a version from the trainer's ranks, each of which exports its share of the buckets, and chooses its transport to the
engines from `model_update_transport`; nothing else makes that choice. A transport's code is imported only when it is used.

                   engines of the same driver, whole            explorers as separate processes, whole or as deltas
object_store       references to the ranks' buckets             from the trainer's memory, over TCP
ipc                handles of files in this machine's memory
checkpoint_dir     files in the run's folder                    the same
collective, nccl   broadcast (`BROADCAST_DEVICES`); an engine
                   that misses it pulls as with object_store
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from roll.core.configs.base import BaseConfig
from roll.core.configs.dotted_path import import_object
from roll.core.distributed.backend import Backend
from roll.core.distributed.cluster import Cluster
from roll.core.weights.bucket import BucketFile, WeightManifest, manifest_of
from roll.core.weights.store import (
    Broadcast,
    BucketRef,
    Buckets,
    KeptBucket,
    LendingStore,
    MemoryWeightStore,
    Place,
    ReceivingEnd,
    SendingEnd,
    WeightSource,
    WeightStore,
)

TRANSPORTS = {
    "checkpoint_dir": "roll.transports.directory.DirectoryWeightStore",
    "ipc": "roll.transports.handles.HandleStore",
    "lent": "roll.transports.loans.LendingHandleStore",
    "served": "roll.transports.directory.ServedWeightStore",
    "followed": "roll.transports.assembled.AssembledWeights",
    "broadcast": "roll.transports.weight_broadcast.WeightBroadcast",
    "sending": "roll.transports.ends.BroadcastSender",
    "receiving": "roll.transports.ends.BroadcastReceiver",
}
"""The implementations, loaded when they are used."""
T = TypeVar("T")
WEIGHTS = "weights"
"""The folder of versions inside the run's folder."""
BROADCAST_DEVICES = {"collective": "", "nccl": "cuda:0"}
"""The device that versions are broadcast through, by each worker's own numbering; empty: host memory."""


def weight_store(config: BaseConfig, lends: bool = False) -> WeightStore:
    """Returns the store for versions that engines of the same driver use. `lends`: with `ipc`, the trainer's ranks lend them to
    the engines that work on their devices at the same time."""
    if config.model_update_transport == "checkpoint_dir":
        return _made(WeightStore, "checkpoint_dir", _folder(config))
    if config.model_update_transport == "ipc":
        return _made(WeightStore, "lent" if lends else "ipc")
    return MemoryWeightStore()


def published_weights(config: BaseConfig, backend: Backend, newest: int, run_id: str, host: str, port: int = 0) -> WeightStore:
    """Returns the store for versions that explorers use. `newest`: versions up to this one stay from an earlier process of the
    run. `host`, `port`: the address that serves them."""
    every = config.weight_anchor_interval
    if config.model_update_transport == "checkpoint_dir":
        return _made(WeightStore, "checkpoint_dir", _folder(config), newest, run_id, every)
    return _made(WeightStore, "served", _folder(config), newest, host, backend, run_id, every, port)


def followed_weights(config: BaseConfig, run_id: str, backend: Backend) -> WeightSource:
    """Returns an explorer's source of the versions in `published_weights`. A manifest says whether its buckets are files or
    served, and whether they are whole."""
    return _made(WeightSource, "followed", _folder(config), run_id, config.peer_timeout, backend)


def broadcast(config: BaseConfig, backend: Backend, trainers: Cluster | None, engines: Cluster) -> Broadcast | None:
    """Returns the broadcast, or None if engines pull versions. `trainers`: None in a process that has engines alone."""
    device = BROADCAST_DEVICES.get(config.model_update_transport)
    if device is None or trainers is None or not backend.isolated:
        return None
    return _made(Broadcast, "broadcast", trainers, engines, backend.driver_address(), config.engine_health_timeout_s, device)


def sending_end() -> SendingEnd:
    """Returns the sending end, for the worker of a trainer's rank."""
    return _made(SendingEnd, "sending")


def receiving_end() -> ReceivingEnd:
    """Returns the receiving end, for an engine's worker."""
    return _made(ReceivingEnd, "receiving")


def _made(interface: Callable[..., T], name: str, *arguments: object) -> T:
    made: T = import_object(TRANSPORTS[name])(*arguments)
    return made


def _folder(config: BaseConfig) -> Path:
    return Path(config.shared_dir).resolve() / WEIGHTS


@dataclass(frozen=True, slots=True)
class NewWeights:
    """Weights that are gathered but not sent yet."""

    manifest: WeightManifest
    buckets: list[BucketRef]

    @property
    def label(self) -> str:
        return f"version {self.manifest.version}"


async def gather_weights(
    cluster: Cluster, store: WeightStore, version: int, bucket_bytes: int, coming: Buckets | None = None
) -> NewWeights:
    """Gathers the trainer's weights as buckets that stay with the ranks or in their files; only names and checksums come here.
    `coming`: gets the buckets as they are made."""
    coming = Buckets(version) if coming is None else coming
    try:
        weights = await _gathered(cluster, store, coming, bucket_bytes)
    except BaseException:
        coming.end(whole=False)
        raise
    coming.end(whole=True)
    return weights


async def _gathered(cluster: Cluster, store: WeightStore, coming: Buckets, bucket_bytes: int) -> NewWeights:
    place, link = store.begin(coming.version), store.link(coming.version)
    lending = store if isinstance(store, LendingStore) else None
    how = bucket_bytes, link, place is not None, *filter(None, [lending is not None])
    async with asyncio.TaskGroup() as group:
        shares = [group.create_task(_share(cluster, rank, place, lending, coming, *how)) for rank in range(len(cluster))]
    # In turns, as they were made: engines that pull them in this order ask one node after the other.
    turns = itertools.zip_longest(*(share.result() for share in shares))
    buckets = [bucket for turn in turns for bucket in turn if bucket is not None]
    return NewWeights(manifest_of(coming.version, buckets, None if link is None else link.base), buckets)


async def _share(
    cluster: Cluster, rank: int, place: Place | None, lending: LendingStore | None, coming: Buckets, *how: object
) -> list[BucketRef]:
    """Returns the buckets that a rank exports."""
    await cluster.call(rank, "begin_export", *how)
    share: list[BucketRef] = []
    while True:
        path = place(rank, len(share)) if place is not None else ""
        slot = [await lending.slot(rank)] if lending is not None else []
        reference, made = await cluster.call_for_reference(rank, "next_bucket", *filter(None, [path]), *slot)
        if made is None:
            return share
        described, lent = made[:3], made[3:]
        if lending is not None and lent:
            share.append(lending.lend(rank, BucketFile(path, *described), *lent))
        else:
            share.append(BucketFile(path, *described) if path else KeptBucket(rank, reference, *described))
        coming.add(share[-1])
