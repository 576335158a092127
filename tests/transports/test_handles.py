"""Weights that a trainer writes once into the memory of the machine, and that engines map there by their handles."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import numbered_tokenizer, tiny_qwen2

from roll.core.errors import VersionGone
from roll.core.weights.bucket import BucketFile, manifest_of
from roll.strategies.infer.sglang.weights import ServerWeights
from roll.strategies.infer.vllm.weights import StagedBuckets
from roll.transports.buckets import make_buckets
from roll.transports.handles import HandleStore

READER = """
import sys
from roll.core.weights.bucket import BucketFile
path, name, checksum, nbytes = sys.argv[1:]
bucket = BucketFile(path, (name,), int(checksum), int(nbytes)).read()
bucket.verify()
for line in iter(lambda: print(float(bucket.tensors[name].mean()), flush=True) or sys.stdin.readline(), ""):
    bucket.verify()
"""
WRITER = """
import sys
with open(sys.argv[1], "r+b") as file:
    file.write(b"half of a bucket")
    file.flush()
    print("written", flush=True)
    sys.stdin.read()
"""
DRIVER = """
import asyncio, sys, torch
from pathlib import Path
from roll.core.weights.bucket import BucketFile, manifest_of
from roll.transports.buckets import make_buckets
from roll.transports.handles import HandleStore
store = HandleStore()
[bucket] = make_buckets([("w", torch.full((1 << 18,), 7.0))], 1 << 30)
file = BucketFile.write(bucket, Path(store.begin(1)(0, 0)))
asyncio.run(store.publish(manifest_of(1, [bucket]), [file]))
print(file.path, file.checksum, file.nbytes, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_qwen2(50).save_pretrained(folder)
    numbered_tokenizer(37).save_pretrained(folder)
    return folder


@pytest.fixture
def store():
    store = HandleStore()
    yield store
    store.close()


@pytest.fixture
def written(monkeypatch):
    """Bytes of each write to a file."""
    sizes, write = [], os.write

    def note(descriptor, content):
        count = write(descriptor, content)
        sizes.append(count)
        return count

    monkeypatch.setattr(os, "write", note)
    return sizes


def publish(store, model, version):
    """What a trainer's rank does."""
    buckets = list(make_buckets(load_file(model / "model.safetensors").items(), 4_000))
    return publish_buckets(store, version, buckets)


def publish_buckets(store, version, buckets):
    place = store.begin(version)
    files = [BucketFile.write(bucket, Path(place(0, number))) for number, bucket in enumerate(buckets)]
    place(0, len(files))  # a rank learns only by its last call that there is no further bucket
    asyncio.run(store.publish(manifest_of(version, buckets), files))
    return files


def publish_value(store, version):
    """One bucket of a megabyte, in which every number is the version's."""
    [file] = publish_buckets(store, version, list(make_buckets([("w", torch.full((1 << 18,), float(version)))], 1 << 30)))
    return file, inode(file)


def inode(file):
    return Path(file.path).stat().st_ino


def serve(store, version):
    """Publishes a version, and drops all others."""
    made = publish_value(store, version)
    asyncio.run(store.retain([version]))
    return made


def own_files():
    """Descriptors of this process that are memory files of weights."""
    links = (os.path.realpath(file) for file in Path("/proc/self/fd").iterdir())
    return sum("memfd:weights" in link for link in links)


@contextmanager
def child(program, *arguments):
    command = [sys.executable, "-c", program, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait(30)


def says(process):
    """A line of the child's, after another one to it."""
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def pull(store, version, receive):
    async def into(version, bucket):
        receive(version, bucket.read())

    return asyncio.run(store.pull(version, into))


def test_a_version_is_written_once_and_mapped_by_vllm(model, store, written):
    """Bytes that are copied in host memory after the trainer has its buckets: those of the files, and no more."""
    files = publish(store, model, 1)
    headers = sum(Path(file.path).stat().st_size for file in files) - sum(file.nbytes for file in files)
    assert sum(written) == sum(file.nbytes for file in files) + headers and len(files) > 3
    written.clear()
    received = StagedBuckets(model, tied=True)
    manifest = pull(store, 1, received.receive)
    paths = received.take(manifest)
    assert not written, "the engine's process copies nothing"
    asyncio.run(store.retain([]))
    assert not any(Path(file.path).exists() for file in files), "the next version may have come meanwhile"
    found = {name: tensor for path in paths for name, tensor in load_file(path).items()}
    expected = load_file(model / "model.safetensors")
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)
    received.forget()


def test_sglang_is_told_where_the_same_files_are(model, store, written):
    files = publish(store, model, 1)
    written.clear()
    received = ServerWeights(["cpu"])
    manifest = pull(store, 1, received.receive)
    with received.taken(manifest) as said:
        paths = [Path(path) for path in json.loads(said)["files"]]
        assert not written
        assert {path.stat().st_ino for path in paths} == {Path(file.path).stat().st_ino for file in files}
        asyncio.run(store.retain([]))
        assert all(path.exists() for path in paths) and len(paths) == len(files)
    assert not any(path.exists() for path in paths)


def test_bytes_that_change_in_the_file_are_found_where_they_are_taken(model, store):
    (first, *_) = publish(store, model, 1)
    with open(first.path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    with pytest.raises(ValueError, match="corrupt"):
        pull(store, 1, StagedBuckets(model, tied=True).receive)


def test_the_memory_is_given_back_with_the_store(model):
    before, store = own_files(), HandleStore()
    for version in (1, 2, 3):
        publish(store, model, version)
        asyncio.run(store.retain([version]))
    assert own_files() > before
    store.close()
    assert own_files() == before


def test_versions_take_turns_in_the_memory_of_two(store):
    before, inodes = own_files(), [serve(store, version)[1] for version in range(1, 8)]
    assert len(set(inodes)) == 2 and inodes[0] == inodes[2] == inodes[4]
    assert own_files() - before <= 4, "of a version its file and one that no bucket came into"


def test_a_handle_of_a_version_that_is_gone_leads_nowhere(store):
    first, memory = serve(store, 1)
    serve(store, 2)
    _, again = serve(store, 3)
    assert again == memory, "the test is blind: the memory was not written again"
    with pytest.raises(ValueError, match="cannot be read"):
        first.read()
    with pytest.raises(VersionGone):
        store.manifest(1)


def test_a_version_stays_whole_under_a_reader_that_hangs_until_it_is_killed(store):
    before, (file, memory) = own_files(), serve(store, 1)
    with child(READER, file.path, "w", file.checksum, file.nbytes) as reader:
        assert reader.stdout.readline().strip() == "1.0"
        inodes = [serve(store, version)[1] for version in range(2, 6)]
        assert memory not in inodes and len(set(inodes)) == 2, "who hangs has his file, and the others take turns"
        assert says(reader) == "1.0"
        kill(reader)
    assert own_files() - before <= 4


def test_a_rank_that_is_killed_while_it_writes_leaves_nothing_that_could_be_read(store):
    served, _ = serve(store, 1)
    path = store.begin(2)(0, 0)
    with child(WRITER, path) as rank:
        assert rank.stdout.readline().strip() == "written"
        kill(rank)
    assert not store.has(2) and store.has(1)
    assert float(served.read().tensors["w"].mean()) == 1.0
    file, _ = serve(store, 2)  # the rank that was started again
    bucket = file.read()
    bucket.verify()
    assert float(bucket.tensors["w"].mean()) == 2.0 and not Path(path).exists()


def test_when_the_driver_is_killed_a_reader_keeps_what_it_has_and_nothing_has_a_name():
    before = set(os.listdir("/dev/shm"))
    with child(DRIVER) as driver:
        path, checksum, nbytes = driver.stdout.readline().split()
        file = BucketFile(path, ("w",), int(checksum), int(nbytes))
        bucket = file.read()
        kill(driver)
    bucket.verify()
    assert float(bucket.tensors["w"].mean()) == 7.0
    with pytest.raises(ValueError, match="cannot be read"):
        file.read()
    assert not {name for name in set(os.listdir("/dev/shm")) - before if name.startswith(("roll-weights", "memfd"))}
