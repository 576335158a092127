"""Every value of `model_update_transport` brings a version from a trainer to who asks for it."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
import torch

from roll.core.configs.base import TRANSPORTS_APART, WeightTransport
from roll.core.distributed.cluster import Cluster
from roll.core.weights.bucket import BucketFile, manifest_of
from roll.core.weights.store import KeptBucket
from roll.core.weights.transport import broadcast, followed_weights, published_weights, weight_store
from roll.platform.local_backend import LocalBackend
from roll.transports.buckets import make_buckets


def configured(transport, folder):
    return SimpleNamespace(
        model_update_transport=transport,
        shared_dir=str(folder),
        weight_anchor_interval=1,
        peer_timeout=10.0,
        engine_health_timeout_s=10.0,
    )


async def publish(store):
    (bucket,) = make_buckets([("w", torch.arange(4.0))], 1 << 20)
    manifest, place = manifest_of(3, [bucket]), store.begin(3)
    kept = KeptBucket(0, bucket, bucket.names, bucket.checksum, bucket.nbytes)
    await store.publish(manifest, [kept if place is None else BucketFile.write(bucket, Path(place(0, 0)))])


async def pulled(source):
    found = []

    async def receive(version, bucket):
        found.append(await asyncio.to_thread(bucket.argument.read))

    assert (await source.pull(3, receive)).version == 3
    return found[0].tensors["w"].tolist()


@pytest.mark.parametrize("transport", get_args(WeightTransport))
def test_engines_of_the_same_driver_get_what_was_published(transport, tmp_path):
    async def main():
        store = weight_store(configured(transport, tmp_path))
        await publish(store)
        assert store.has(3) and not store.has(2)
        assert await pulled(store) == [0.0, 1.0, 2.0, 3.0]
        store.close()

    asyncio.run(main())


@pytest.mark.parametrize("transport", TRANSPORTS_APART)
def test_explorers_get_what_a_trainer_of_another_process_published(transport, tmp_path):
    async def main():
        config = configured(transport, tmp_path)
        store = published_weights(config, LocalBackend(), -1, "5eed", "127.0.0.1")
        await publish(store)
        assert await pulled(followed_weights(config, "5eed", LocalBackend())) == [0.0, 1.0, 2.0, 3.0]
        store.close()

    asyncio.run(main())


def test_only_collectives_are_broadcast_and_nccl_from_device_to_device(tmp_path):
    class Apart(LocalBackend):
        isolated = True

    def device(name, backend):
        found = broadcast(configured(name, tmp_path), backend, Cluster("actor_train", [], 1.0), Cluster("actor_infer", [], 1.0))
        return None if found is None else found._device

    devices = {name: device(name, Apart()) for name in get_args(WeightTransport)}
    assert {name: device for name, device in devices.items() if device is not None} == {"collective": "", "nccl": "cuda:0"}
    assert device("collective", LocalBackend()) is None, "in one process weights travel by reference"
