"""How often a version's bytes are copied in host memory between a trainer's rank and an engine on the same node: by each
transport and for each engine as the documentation says. Counted are the tensors that torch makes or writes to, the files that
are written, and what a message carries out of band, which Ray's store copies once."""

import os
import pickle
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tiny_models import numbered_tokenizer, tiny_qwen2
from torch.utils._python_dispatch import TorchDispatchMode
from train_specs import fsdp2_spec
from transformers import AutoModelForCausalLM

from roll.core.weights.bucket import BucketFile
from roll.core.workers.train_interface import RankContext
from roll.strategies.infer.hf.shadow_weights import ShadowWeights
from roll.strategies.infer.sglang.weights import ServerWeights
from roll.strategies.infer.vllm.weights import StagedBuckets
from roll.strategies.train.fsdp2 import FSDP2Strategy
from roll.transports.broadcast import _pack, _unpack
from roll.transports.node_files import path_of, write_memory_file

PAGE = Path(__file__).parents[2] / "docs_roll" / "weights.md"


class Copied(TorchDispatchMode):
    """Bytes that are written: memory that is new counts once, when it is made."""

    def __init__(self):
        super().__init__()
        self.bytes = 0
        self.files = []
        """Descriptors that are open until the test ends."""
        self._made = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {each.untyped_storage().data_ptr() for each in args if isinstance(each, torch.Tensor)}
        if isinstance(out, torch.Tensor):
            where = out.untyped_storage().data_ptr()
            if where not in given:
                self._made.add(where)
                self.bytes += out.nbytes
            elif func.__name__.startswith("copy_") and where not in self._made:
                self.bytes += out.nbytes
        return out


@contextmanager
def written(copied) -> Iterator[None]:
    write = os.write

    def note(descriptor, content):
        count = write(descriptor, content)
        copied.bytes += count
        return count

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", note)
        yield


def by_the_store(bucket, copied, folder):
    """The message is in Ray's store; who reads it there sees the same memory."""
    outside = []
    message = pickle.dumps(bucket, protocol=5, buffer_callback=outside.append)
    copied.bytes += len(message) + sum(part.raw().nbytes for part in outside)
    return pickle.loads(message, buffers=outside)


def by_file(bucket, copied, folder):
    return BucketFile.write(bucket, folder / f"{bucket.checksum}.safetensors").read()


def by_handle(bucket, copied, folder):
    copied.files.append(write_memory_file({}))
    return BucketFile.write(bucket, Path(path_of(copied.files[-1]))).read()


def by_broadcast(bucket, copied, folder):
    header, payload = _pack(by_the_store(bucket, copied, folder))
    return _unpack(header.clone(), payload.clone())  # what gloo receives into


WAYS = {"object_store": by_the_store, "ipc": by_handle, "checkpoint_dir": by_file, "collective": by_broadcast}
ENGINES = {
    "hf_infer": lambda folder: ShadowWeights(AutoModelForCausalLM.from_pretrained(folder)),
    "vllm": lambda folder: StagedBuckets(folder, tied=False),
    "sglang": lambda folder: ServerWeights(["cpu"]),
}


def said():
    """The table of the page: transport -> engine -> copies."""
    rows = re.findall(r"^`?(\w+)`? \| (\d) \| (\d)$", PAGE.read_text().partition("copies | `hf_infer`")[2], re.MULTILINE)
    return {way: {"hf_infer": int(own), "vllm": int(other), "sglang": int(other)} for way, own, other in rows}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_qwen2(50, hidden_size=64, tie_word_embeddings=False).save_pretrained(folder)
    numbered_tokenizer(37).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("way", WAYS)
def test_a_version_is_copied_as_often_as_the_page_says(model, tmp_path, monkeypatch, way, engine):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # engines of other tests share no files with these
    trainer, first, second = FSDP2Strategy(RankContext(), fsdp2_spec(model)), *(ENGINES[engine](model) for _ in range(2))
    with tempfile.TemporaryDirectory() as folder, Copied() as copied, written(copied):
        size = more = 0
        for bucket in trainer.export_weights(100_000, borrow=WAYS[way] in (by_file, by_handle)):
            size += bucket.nbytes
            there = WAYS[way](bucket, copied, Path(folder))
            first.receive(1, there)
            before = copied.bytes
            second.receive(1, there)
            more += copied.bytes - before
        for file in copied.files:
            os.close(file)
        # Headers and messages besides.
        assert (copied.bytes - more) / size == pytest.approx(said()[way][engine], abs=0.1)
        assert more / size == (engine == "hf_infer"), "engines that are other processes share a file"
