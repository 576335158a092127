"""Chains of versions, from a trainer's store to an explorer's engines: who follows, comes late, or has something wrong."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from roll.core.errors import VersionGone
from roll.core.weights.bucket import BucketFile, manifest_of
from roll.core.weights.store import KeptBucket, Link
from roll.platform.local_backend import LocalBackend
from roll.transports.assembled import AssembledWeights
from roll.transports.buckets import make_buckets
from roll.transports.delta import LastShare
from roll.transports.directory import MANIFEST, DirectoryWeightStore, ServedWeightStore

EVERY = 4
SIZE = 4096


def run(main):
    asyncio.run(asyncio.wait_for(main(), 30))


def weights(version, run_seed=0):
    """Each version changes a few elements of some tensors of the one before, of one tensor all, and of one none."""
    generator = torch.Generator().manual_seed(run_seed)
    tensors = {f"layers.{i}.weight": torch.randn(SIZE, generator=generator).bfloat16() for i in range(4)}
    for number in range(1, version + 1):
        for i in range(2):
            at = torch.randint(0, SIZE, (40,), generator=generator)
            tensors[f"layers.{i}.weight"][at] = torch.randn(40, generator=generator).bfloat16()
        tensors["step"] = torch.tensor(float(number))
    tensors.setdefault("step", torch.tensor(0.0))
    return tensors


class Trainer:
    """One rank, and its store."""

    def __init__(self, store, run_seed=0):
        self.store, self._share, self._seed = store, LastShare(), run_seed

    async def publish(self, version):
        link, place = self.store.link(version), self.store.begin(version)
        buckets = list(self._share.linked(link, make_buckets(weights(version, self._seed).items(), 3 * SIZE)))
        assert len(buckets) > 1
        if place is None:
            kept = [KeptBucket(0, bucket, bucket.names, bucket.checksum, bucket.nbytes) for bucket in buckets]
        else:
            kept = [BucketFile.write(bucket, Path(place(0, i))) for i, bucket in enumerate(buckets)]
        await self.store.publish(manifest_of(version, kept, link.base), kept)
        return sum(bucket.nbytes for bucket in buckets)


def make_trainer(transport, folder, newest=-1, every=EVERY, run_seed=0):
    if transport == "files":
        return Trainer(DirectoryWeightStore(folder, newest, "5eed", every), run_seed)
    return Trainer(ServedWeightStore(folder, newest, "127.0.0.1", LocalBackend(), "5eed", every), run_seed)


@pytest.fixture(params=["files", "served"])
def transport(request):
    return request.param


@pytest.fixture
def trainer(transport, tmp_path):
    trainer = make_trainer(transport, tmp_path)
    yield trainer
    trainer.store.close()


def reader(folder, patience_s=10.0):
    return AssembledWeights(folder, "5eed", patience_s, LocalBackend())


async def pull(source, version):
    """An engine's way, with its checks."""
    received, checksums = {}, []

    async def take(of, bucket):
        assert of == version
        got = await asyncio.to_thread(bucket.argument.read)
        got.verify()
        received.update(got.tensors)
        checksums.append(got.checksum)

    await source.pull(version, take)
    source.manifest(version).check(version, received, checksums)
    return received


async def assert_has(source, version, run_seed=0):
    received, expected = await pull(source, version), weights(version, run_seed)
    assert received.keys() == expected.keys()
    for name, tensor in expected.items():
        assert received[name].dtype == tensor.dtype and torch.equal(received[name], tensor), name


def forget(folder, version):
    """Nobody can read the version's buckets any more."""
    path = folder / f"version-{version}" / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "buckets": [["gone.safetensors", ["w"], 0, 0]], "served": False}))


def test_who_follows_reads_each_link_once_and_who_comes_late_the_anchor_and_all_since(trainer, tmp_path):
    async def main():
        follower, sizes = reader(tmp_path), []
        for version in range(7):
            sizes.append(await trainer.publish(version))
            await assert_has(follower, version)
            if version == 5:
                forget(tmp_path, 4)  # the follower needs it no more
                with pytest.raises(ValueError, match="cannot be read"):
                    await pull(reader(tmp_path), 5)
        assert [size > 4 * SIZE * 2 for size in sizes] == [True, False, False, False, True, False, False], "whole, or not"
        assert max(sizes[1:4]) < 1000

    run(main)


def test_a_fresh_reader_gets_any_version_that_is_there(trainer, tmp_path):
    async def main():
        for version in (0, 2, 4, 6, 8):  # weight_push_interval: 2
            await trainer.publish(version)
        for version in (8, 6, 4, 0):
            await assert_has(reader(tmp_path), version)

    run(main)


def test_versions_may_be_skipped(trainer, tmp_path):
    async def main():
        source = reader(tmp_path)
        for version in range(11):
            await trainer.publish(version)
            if version in (1, 3, 10):
                await assert_has(source, version)

    run(main)


def test_what_is_kept_can_be_put_together(trainer, tmp_path):
    """The publisher names the versions that explorers may ask for; their bases stay as long."""

    async def main():
        for version in range(7):
            await trainer.publish(version)
        await trainer.store.retain({6})
        assert {path.parent.name for path in tmp_path.glob(f"version-*/{MANIFEST}")} == {f"version-{v}" for v in (4, 5, 6)}
        await assert_has(reader(tmp_path), 6)
        with pytest.raises(VersionGone):
            await pull(reader(tmp_path), 3)
        await trainer.publish(7)
        await trainer.publish(8)
        await trainer.store.retain({8})
        assert {path.parent.name for path in tmp_path.glob(f"version-*/{MANIFEST}")} == {"version-8"}

    run(main)


def test_a_trainer_that_comes_back_goes_on_from_versions_that_are_whole_alone(tmp_path):
    async def main():
        first = make_trainer("files", tmp_path)
        for version in range(8):
            await first.publish(version)
        (tmp_path / "version-1").rename(tmp_path / "deleted-1")  # as if it had been killed there
        second = make_trainer("files", tmp_path, newest=6)
        assert [version for version in range(9) if second.store.has(version)] == [0, 4, 5, 6]
        await second.store.retain({5, 6})
        await second.publish(7)
        assert second.store.links(7) == [Link(7, None)], "it remembers no weights of the process before"
        for version in (5, 7):
            await assert_has(reader(tmp_path), version)

    run(main)


def test_engines_of_one_explorer_fetch_a_version_once(trainer, tmp_path, monkeypatch):
    async def main():
        await trainer.publish(0)
        source, read = reader(tmp_path), []
        for kind in ("roll.transports.directory.BucketFile", "roll.transports.bucket_server.ServedBucket"):
            module, _, name = kind.rpartition(".")
            cls = getattr(sys.modules[module], name)
            real = cls.read
            monkeypatch.setattr(cls, "read", lambda self, real=real: read.append(self) or real(self))
        await asyncio.gather(*(assert_has(source, 0) for _ in range(5)))
        buckets = len(read)
        assert buckets == len({str(each) for each in read})
        await trainer.publish(1)
        await asyncio.gather(*(assert_has(source, 1) for _ in range(5)))
        assert len(read) == 2 * buckets

    run(main)


def test_who_has_other_weights_under_the_bases_number_takes_the_anchor(transport, tmp_path, caplog):
    """A trainer that went on from a checkpoint publishes the same numbers once more."""

    async def main():
        source = reader(tmp_path)
        first = make_trainer(transport, tmp_path, run_seed=1)
        for version in range(3):
            await first.publish(version)
        await assert_has(source, 2, run_seed=1)
        first.store.close()
        second = make_trainer(transport, tmp_path, newest=0)
        for version in (1, 2, 3):
            await second.publish(version)
        await assert_has(source, 3)
        second.store.close()

    run(main)
    assert "is not what was published: its hash differs; taking the newest whole version again" in caplog.text


def test_a_damaged_link_is_an_error_until_the_next_whole_version(tmp_path):
    async def main():
        trainer, source = make_trainer("files", tmp_path), reader(tmp_path)
        for version in range(3):
            await trainer.publish(version)
        await assert_has(source, 1)
        file = next((tmp_path / "version-2").glob("*.safetensors"))
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(ValueError, match="corrupt"):
            await pull(source, 2)
        for version in (3, 4):
            await trainer.publish(version)
        with pytest.raises(ValueError, match="corrupt"):
            await pull(source, 3)
        await assert_has(source, 4)

    run(main)


def test_a_whole_version_is_in_nobodys_way_without_chains(transport, tmp_path):
    """Every engine fetches its buckets by itself, as files or over TCP: nothing is held here."""

    async def main():
        trainer = make_trainer(transport, tmp_path, every=1)
        assert trainer.store.link(0) is None
        buckets = list(make_buckets(weights(0).items(), 3 * SIZE))
        place = trainer.store.begin(0)
        kept = [
            KeptBucket(0, bucket, bucket.names, bucket.checksum, bucket.nbytes)
            if place is None
            else BucketFile.write(bucket, Path(place(0, i)))
            for i, bucket in enumerate(buckets)
        ]
        await trainer.store.publish(manifest_of(0, kept), kept)
        handed, source = [], reader(tmp_path)

        async def take(_, bucket):
            handed.append(type(bucket.argument).__name__)

        await source.pull(0, take)
        assert set(handed) == {"BucketFile" if transport == "files" else "ServedBucket"}
        trainer.store.close()

    run(main)


def test_a_reader_waits_for_a_trainer_that_is_away_and_goes_on_with_its_next_chain(tmp_path):
    async def main():
        source, first = reader(tmp_path), make_trainer("served", tmp_path)
        for version in range(2):
            await first.publish(version)
        await assert_has(source, 1)
        first.store.close()
        waits = asyncio.create_task(assert_has(source, 3))
        await asyncio.sleep(0)
        second = make_trainer("served", tmp_path, newest=1)
        for version in (2, 3):
            await second.publish(version)
        await waits
        second.store.close()

    run(main)


def test_a_trainer_that_is_killed_while_it_publishes_leaves_what_a_fresh_reader_can_read(tmp_path):
    """Again and again, at other moments; each that follows goes on from what it finds."""
    newest, killed = -1, 0
    for round_number in range(6):
        writer = subprocess.Popen(
            [sys.executable, __file__, str(tmp_path), str(newest)], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
        )
        for _ in range(1 + round_number):  # versions that it announces; the kill meets it in the next one
            newest = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        killed += writer.wait(30) == -signal.SIGKILL
        newest = max([newest, *map(int, writer.stdout.read().split())])
        writer.stdout.close()
        latest = reader(tmp_path).latest()
        assert latest >= newest, "what was announced is there"
        run(lambda latest=latest: assert_has(reader(tmp_path), latest))
        newest = latest
    assert killed == 6


async def publish_for_ever(folder, newest):
    trainer = make_trainer("files", folder, newest)
    version = newest
    while True:
        version += 1
        await trainer.publish(version)
        print(version, flush=True)
        await trainer.store.retain(range(version - 2, version + 1))


if __name__ == "__main__":
    asyncio.run(publish_for_ever(Path(sys.argv[1]), int(sys.argv[2])))
