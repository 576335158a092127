import asyncio

import pytest

from roll.weights.bucket import Manifest
from roll.weights.store import MemoryWeightStore


def run(main):
    asyncio.run(asyncio.wait_for(main(), 5))


async def pull(store, version):
    received = []

    async def take(version, bucket):
        received.append((version, bucket))

    manifest = await store.pull(version, take)
    return manifest, received


def test_a_published_version_is_pulled_whole_and_in_order_by_any_number_of_receivers():
    async def main():
        store = MemoryWeightStore()
        assert store.latest() == -1
        manifest = Manifest(1, ["a", "b"], [10, 11], 8)
        await store.publish(manifest, ["bucket a", "bucket b"])
        assert store.latest() == 1
        for got, received in await asyncio.gather(pull(store, 1), pull(store, 1)):
            assert got is manifest
            assert received == [(1, "bucket a"), (1, "bucket b")]

    run(main)


@pytest.mark.parametrize("version", [3, 2])
def test_the_past_is_not_published_again(version):
    async def main():
        store = MemoryWeightStore()
        await store.publish(Manifest(3), ["new"])
        with pytest.raises(ValueError, match=f"version {version} published after version 3"):
            await store.publish(Manifest(version), ["old"])
        assert store.latest() == 3
        assert (await pull(store, 3))[1] == [(3, "new")], "what was there is untouched"

    run(main)


def test_versions_are_kept_until_they_are_retired():
    async def main():
        store = MemoryWeightStore()
        await store.publish(Manifest(1), ["one"])
        await store.publish(Manifest(4), ["four"])
        assert (await pull(store, 1))[1] == [(1, "one")], "an engine that comes up between sending and flipping needs it"
        store.retire(before=4)
        with pytest.raises(KeyError):
            await pull(store, 1)
        assert (await pull(store, 4))[1] == [(4, "four")]

    run(main)


def test_a_pull_under_way_gets_its_version_although_a_newer_one_is_published():
    async def main():
        store = MemoryWeightStore()
        await store.publish(Manifest(1), ["a", "b"])
        received = []

        async def take(version, bucket):
            if not received:
                await store.publish(Manifest(2), ["c"])
            received.append((version, bucket))

        await store.pull(1, take)
        assert received == [(1, "a"), (1, "b")]

    run(main)


def test_waiting_for_a_version_ends_with_it_or_a_later_one():
    async def main():
        store = MemoryWeightStore()
        waiters = [asyncio.create_task(store.wait_for(version)) for version in (1, 2, 5)]
        await store.publish(Manifest(1), [])
        await waiters[0]
        assert not waiters[1].done()
        await store.publish(Manifest(4), [])
        await waiters[1]
        assert not waiters[2].done()
        waiters[2].cancel()

    run(main)


def test_a_receiver_that_fails_is_heard():
    async def main():
        store = MemoryWeightStore()
        await store.publish(Manifest(1), ["a"])

        async def refuse(version, bucket):
            raise ValueError("weight bucket is corrupt")

        with pytest.raises(ValueError, match="corrupt"):
            await store.pull(1, refuse)

    run(main)
