"""Weights that a trainer writes once into the memory of the machine, and that engines map there."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import numbered_tokenizer, tiny_qwen2

from roll.core.weights.bucket import BucketFile, make_buckets, manifest_of
from roll.core.weights.layout import MEMORY
from roll.strategies.infer.vllm.weights import ReceivedWeights
from roll.transports.directory import MemoryFolderStore, check_room
from roll.transports.staged import StagedWeights

pytestmark = pytest.mark.skipif(not MEMORY.is_dir(), reason="the machine has no /dev/shm")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_qwen2(50).save_pretrained(folder)
    numbered_tokenizer(37).save_pretrained(folder)
    return folder


@pytest.fixture
def store():
    store = MemoryFolderStore()
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
    folder = store.begin(version)
    files = [BucketFile.write(bucket, folder / f"000-{i:05}.safetensors") for i, bucket in enumerate(buckets)]
    asyncio.run(store.publish(manifest_of(version, buckets), files))
    return files


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
    received = ReceivedWeights(model, tied=True)
    manifest = pull(store, 1, received.receive)
    paths = received.take(manifest)
    assert not written, "the engine's process copies nothing"
    asyncio.run(store.retain([]))
    assert not any(Path(file.path).exists() for file in files), "the next version may have come meanwhile"
    found = {name: tensor for path in paths for name, tensor in load_file(path).items()}
    expected = load_file(model / "model.safetensors")
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)
    received.forget()


def test_a_server_in_another_process_gets_the_same_files_under_other_names(model, store, written):
    files = publish(store, model, 1)
    written.clear()
    staged = StagedWeights()
    try:
        manifest = pull(store, 1, staged.receive)
        folder = staged.complete(manifest)
        assert not written
        same = {path.stat().st_ino for path in folder.glob("*.safetensors")}
        assert same == {Path(file.path).stat().st_ino for file in files}
        asyncio.run(store.retain([]))
        assert len(list(folder.glob("*.safetensors"))) == len(files)
    finally:
        staged.close()


def test_bytes_that_change_in_the_file_are_found_where_they_are_taken(model, store):
    (first, *_) = publish(store, model, 1)
    with open(first.path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    with pytest.raises(ValueError, match="corrupt"):
        pull(store, 1, ReceivedWeights(model, tied=True).receive)


def test_the_memory_is_given_back_with_the_store(model):
    store = MemoryFolderStore()
    (folder,) = {Path(file.path).parent.parent for file in publish(store, model, 1)}
    assert folder.is_relative_to(MEMORY)
    store.close()
    assert not folder.exists()


def test_two_versions_have_to_fit(tmp_path, monkeypatch):
    save_file({"w": torch.zeros(1 << 10, 1 << 8, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({}))
    needed = 2 * 4 * (1 << 18)
    free = shutil.disk_usage(MEMORY)._replace(free=needed)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    check_room(tmp_path, 4)
    free = free._replace(free=needed - 1)
    with pytest.raises(ValueError, match=r"two versions of the weights take 0\.0 GiB, and /dev/shm has 0\.0 free"):
        check_room(tmp_path, 4)
