"""What every weight store does, and what only files can get wrong."""

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest
import torch

from roll.core.errors import Unreachable, VersionGone
from roll.core.weights.bucket import BucketFile, WeightManifest, manifest_of
from roll.core.weights.store import Buckets, KeptBucket, MemoryWeightStore
from roll.platform.local_backend import LocalBackend
from roll.transports.buckets import make_buckets
from roll.transports.directory import MANIFEST, SERVER, DirectoryWeightStore, ServedWeightStore, WeightFolder

DTYPES = [torch.float32, torch.bfloat16, torch.int64]


def run(main):
    asyncio.run(asyncio.wait_for(main(), 5))


def weights(version):
    return {f"w{i}": torch.arange(6).reshape(2, 3).to(DTYPES[i % 3]) + version for i in range(5)}


@pytest.fixture(params=["memory", "directory", "served"])
def make_store(request, tmp_path):
    return {
        "memory": MemoryWeightStore,
        "directory": partial(DirectoryWeightStore, tmp_path),
        "served": partial(serve, tmp_path),
    }[request.param]


def serve(folder, newest=-1):
    return ServedWeightStore(folder, newest, "127.0.0.1", LocalBackend())


async def publish(store, version):
    """As the trainer's ranks do it."""
    buckets = list(make_buckets(weights(version).items(), 60))
    assert len(buckets) > 2
    manifest, place = manifest_of(version, buckets), store.begin(version)
    if place is not None:
        buckets = [BucketFile.write(bucket, Path(place(0, i))) for i, bucket in enumerate(buckets)]
    else:
        buckets = [KeptBucket(0, bucket, tuple(bucket.tensors), bucket.checksum, bucket.nbytes) for bucket in buckets]
    await store.publish(manifest, buckets)
    return manifest


async def pull(store, version):
    received = {}

    async def take(of, bucket):
        assert of == version
        bucket = bucket.reference if isinstance(bucket, KeptBucket) else await asyncio.to_thread(bucket.read)
        bucket.verify()
        received.update(bucket.tensors)

    manifest = await store.pull(version, take)
    assert received.keys() == set(manifest.names)
    return manifest, received


def assert_is(received, version):
    expected = weights(version)
    assert received.keys() == expected.keys()
    for name, tensor in expected.items():
        assert received[name].dtype == tensor.dtype and torch.equal(received[name], tensor)


def test_a_published_version_is_pulled_whole_by_any_number_of_receivers(make_store):
    async def main():
        store = make_store()
        manifest = await publish(store, 1)
        assert store.manifest(1) == manifest
        for got, received in await asyncio.gather(pull(store, 1), pull(store, 1)):
            assert got == manifest
            assert_is(received, 1)

    run(main)


@pytest.mark.parametrize("version", [3, 2])
def test_the_past_is_not_published_again(make_store, version):
    async def main():
        store = make_store()
        await publish(store, 3)
        with pytest.raises(ValueError, match=f"version {version} published after version 3"):
            await store.publish(WeightManifest(version), [])
        assert_is((await pull(store, 3))[1], 3)

    run(main)


def test_versions_are_kept_until_they_are_needed_no_more(make_store):
    async def main():
        store = make_store()
        await publish(store, 1)
        await publish(store, 4)
        assert_is((await pull(store, 1))[1], 1)  # an engine that comes up between sending and flipping needs it
        await store.retain({4, 9})
        for gone in (store.manifest, lambda version: asyncio.ensure_future(pull(store, version))):
            with pytest.raises(VersionGone):
                await gone(1)
        assert_is((await pull(store, 4))[1], 4)

    run(main)


def test_two_who_clear_away_at_the_same_time_do_not_meet(make_store):
    async def main():
        store = make_store()
        for version in (1, 2, 3):
            await publish(store, version)
        await asyncio.gather(store.retain({2, 3}), store.retain({3}), store.retain({3}))
        with pytest.raises(VersionGone):
            await pull(store, 2)
        assert_is((await pull(store, 3))[1], 3)

    run(main)


def test_a_version_that_is_being_written_is_neither_there_nor_cleared_away(make_store):
    async def main():
        store = make_store()
        await publish(store, 1)
        store.begin(2)
        await store.retain({1})
        with pytest.raises((VersionGone, Unreachable)):
            store.manifest(2)
        await store.publish(WeightManifest(2), [])
        assert store.manifest(2).version == 2

    run(main)


def test_a_pull_under_way_gets_its_version_although_a_newer_one_is_published(make_store):
    async def main():
        store = make_store()
        await publish(store, 1)
        received = []

        async def take(version, bucket):
            if not received:
                await publish(store, 2)
            received.append(version)

        manifest = await store.pull(1, take)
        assert manifest.version == 1 and set(received) == {1}

    run(main)


def test_another_process_finds_what_the_store_publishes_and_deletes_nothing(tmp_path):
    async def main():
        store, reader = DirectoryWeightStore(tmp_path / "weights"), WeightFolder(tmp_path / "weights")
        assert reader.latest() == -1 and not reader.has(1)
        await publish(store, 1)
        await reader.retain(())
        manifest, received = await pull(reader, 1)
        assert reader.latest() == manifest.version == 1
        assert_is(received, 1)
        with pytest.raises(Unreachable, match=r"version 2 is not in .* yet"):
            reader.manifest(2)
        await publish(store, 2)
        await store.retain({2})
        with pytest.raises(VersionGone, match=r"version 1 is not in .* any more"):
            reader.manifest(1)

    run(main)


def test_a_store_that_takes_a_folder_over_leaves_the_versions_that_it_goes_on_from(tmp_path):
    async def main():
        first = DirectoryWeightStore(tmp_path / "weights")
        for version in (1, 2, 3):
            await publish(first, version)
        second = DirectoryWeightStore(tmp_path / "weights", newest=2)
        assert [second.has(version) for version in (1, 2, 3)] == [True, True, False]
        await publish(second, 3)
        assert second.latest() == 3

    run(main)


def test_versions_of_another_run_are_neither_read_nor_gone_on_from(tmp_path):
    async def main():
        await publish(DirectoryWeightStore(tmp_path, run_id="0ther"), 0)
        with pytest.raises(ValueError, match=r"version 0 in .* is of another run \(0ther\), not of 5eed"):
            WeightFolder(tmp_path, "5eed").manifest(0)
        assert not DirectoryWeightStore(tmp_path, newest=0, run_id="5eed").has(0)

    run(main)


def test_a_receiver_that_fails_is_heard(make_store):
    async def main():
        store = make_store()
        await publish(store, 1)

        async def refuse(version, bucket):
            raise ValueError("weight bucket is corrupt")

        with pytest.raises(ValueError, match="corrupt"):
            await store.pull(1, refuse)

    run(main)


def test_a_receiver_has_a_second_bucket_under_way_and_no_third(make_store):
    async def main():
        store = make_store()
        manifest = await publish(store, 1)
        names, under_way, most = [], 0, 0

        async def take(version, bucket):
            nonlocal under_way, most
            names.extend(bucket.names)
            under_way += 1
            most = max(most, under_way)
            for _ in range(5):  # turns of the loop, in which a third could begin
                await asyncio.sleep(0)
            under_way -= 1

        await store.pull(1, take)
        assert (names, most) == (manifest.names, 2)

    run(main)


def test_a_receiver_that_fails_gets_nothing_more_and_is_heard_when_nothing_is_under_way(make_store):
    async def main():
        store = make_store()
        await publish(store, 1)
        begun, ended, refused = [], [], asyncio.Event()

        async def take(version, bucket):
            begun.append(bucket.names)
            if len(begun) == 2:
                refused.set()
                raise ValueError("weight bucket is corrupt")
            await refused.wait()
            await asyncio.sleep(0)
            ended.append(bucket.names)

        with pytest.raises(ValueError, match="corrupt"):
            await store.pull(1, take)
        assert (len(begun), ended) == (2, begun[:1])

    run(main)


@pytest.fixture
def made():
    """The buckets of a version, in the order in which they are made."""
    buckets = list(make_buckets(weights(1).items(), 60))
    return [KeptBucket(0, each, each.names, each.checksum, each.nbytes) for each in buckets]


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_made_of_a_version_is_handed_over_before_all_is_made(made, whole):
    async def main():
        coming, arrived, received = Buckets(1), asyncio.Event(), {1: [], 2: []}

        async def take(receiver, version, bucket):
            received[receiver].append((version, bucket))
            arrived.set()

        receivers = asyncio.gather(*(coming.hand_over(partial(take, receiver)) for receiver in received))
        for bucket in made:
            arrived.clear()
            coming.add(bucket)
            await arrived.wait()
        assert not receivers.done() and not coming.whole
        coming.end(whole)
        await receivers
        assert list(received.values()) == [[(1, bucket) for bucket in made]] * 2 and coming.whole is whole

    run(main)


def test_a_receiver_that_fails_is_heard_before_the_next_bucket_is_made(made):
    async def main():
        coming = Buckets(1)

        async def refuse(version, bucket):
            raise ValueError("weight bucket is corrupt")

        coming.add(made[0])
        with pytest.raises(ValueError, match="corrupt"):
            await coming.hand_over(refuse)

    run(main)


def test_a_new_run_finds_nothing_of_the_last(tmp_path):
    """Neither a version nor the beginning of one, while files of others stay."""

    async def main():
        store = DirectoryWeightStore(tmp_path)
        await publish(store, 7)
        store.begin(8)
        (tmp_path / "notes.txt").touch()
        assert DirectoryWeightStore(tmp_path).latest() == -1
        assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]

    run(main)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), "corrupt: checksum differs"),
        (lambda raw: raw[:-8], "cannot be read"),
        (lambda raw: b"", "cannot be read"),
        (lambda raw: raw.replace(b'"w0"', b'"x0"'), "instead of"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, damage, message):
    async def main():
        store = DirectoryWeightStore(tmp_path)
        await publish(store, 1)
        file = tmp_path / "version-1" / "000-00000.safetensors"
        file.write_bytes(damage(file.read_bytes()))
        with pytest.raises(ValueError, match=message):
            await pull(store, 1)

    run(main)


def test_a_missing_file_is_refused(tmp_path):
    async def main():
        store = DirectoryWeightStore(tmp_path)
        await publish(store, 1)
        (tmp_path / "version-1" / "000-00001.safetensors").unlink()
        with pytest.raises(ValueError, match=r"1\.safetensors' cannot be read"):
            await pull(store, 1)

    run(main)


def test_the_manifest_is_plain_json(tmp_path):
    async def main():
        await publish(DirectoryWeightStore(tmp_path), 1)
        manifest = json.loads((tmp_path / "version-1" / MANIFEST).read_text())
        assert manifest["version"] == 1
        assert [row[0] for row in manifest["buckets"]] == sorted(row[0] for row in manifest["buckets"])

    run(main)


def test_served_buckets_end_with_their_trainer_and_are_had_from_the_next(tmp_path):
    """What readers know of the first is of no use to them, and the second says what is left."""

    async def main():
        first, reader = serve(tmp_path), WeightFolder(tmp_path)
        for version in (3, 4):
            await publish(first, version)
        assert_is((await pull(reader, 3))[1], 3)
        first.close()
        with pytest.raises(Unreachable, match="no trainer serves"):
            await pull(reader, 4)
        second = serve(tmp_path, newest=4)
        assert not second.has(4) and reader.has(4)
        with pytest.raises(Unreachable, match="does not have it"):
            await pull(reader, 4)
        await publish(second, 4)
        await second.retain(range(3, 5))
        assert_is((await pull(reader, 4))[1], 4)
        with pytest.raises(VersionGone):
            await pull(reader, 3)
        assert (tmp_path / SERVER).stat().st_mode & 0o777 == 0o600

    run(main)
