"""A version between the worker and SGLang's processes: what is kept, what is told, and what the loader reads there. Without a
server; with memory files in the place of a GPU's memory."""

import ast
import base64
import gc
import os
import pickle
import pickletools
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lender_program import LENDER

from roll.core.weights.bucket import Bucket, manifest_of
from roll.strategies.infer.sglang.loader import load
from roll.strategies.infer.sglang.weights import ServerWeights, as_tensors
from roll.transports.buckets import make_buckets
from roll.transports.lending import Lender, Lent, LentBucket
from roll.transports.shared_buffers import FileBuffer

FILES = {"cpu": FileBuffer}
SERVER = """
import base64, pickle, sys, torch
from roll.strategies.infer.sglang.loader import load
class Model:
    def load_weights(self, weights):
        name, tensor = next(weights)
        print(name, float(tensor.float().mean()), flush=True)
        sys.stdin.readline()
        print(sorted([name, *(name for name, _ in weights)]), flush=True)
load(Model(), pickle.loads(base64.b64decode(sys.argv[1])))
sys.stdin.read()
"""

FAILING = """
import base64, pickle, subprocess, sys
from roll.strategies.infer.sglang.loader import load_or_end
class Model:
    def load_weights(self, weights):
        raise ValueError(f"{next(weights)[0]} is of another shape")
subprocess.Popen(["sleep", "1000"])
sys.stderr = sys.stdout
load_or_end(Model(), pickle.loads(base64.b64decode(sys.argv[1])))
"""


@contextmanager
def child(program, *arguments, **options):
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait(30)


def buckets_of(seed, size=64):
    generator = torch.Generator().manual_seed(seed)
    dtypes = [torch.float32, torch.bfloat16]
    return list(make_buckets(((f"w{i}", torch.randn(4, 4, generator=generator).to(dtypes[i % 2])) for i in range(7)), size))


def tensors_of(buckets):
    return {name: tensor for bucket in buckets for name, tensor in bucket.tensors.items()}


class Lending:
    """A rank of another process, whose buffer is written again for each bucket."""

    def __init__(self):
        self._lender = Lender(FILES)
        self._place = self._lender.begin(1 << 12)

    def __call__(self, bucket):
        self._lender.use(0)
        for tensor in bucket.tensors.values():
            self._place(tensor)
        lent = replace(self._lender.lent(bucket.names), process=1)
        return LentBucket("/nowhere", bucket.names, bucket.checksum, bucket.nbytes, lent)


@pytest.fixture
def received():
    weights = ServerWeights(["cpu"], FILES)
    yield weights
    weights.close()


class Model:
    def load_weights(self, weights):
        self.weights = {name: tensor.clone() for name, tensor in weights}


def loaded(said):
    """What a server's process would have."""
    load(model := Model(), pickle.loads(base64.b64decode(as_tensors(said))))
    return model.weights


def equal(found, buckets):
    expected = tensors_of(buckets)
    return found.keys() == expected.keys() and all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def memory_files():
    """Of this process, that hold weights."""
    gc.collect()
    links = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(os.readlink(each))
    return sum(link.startswith(("/memfd:weights", "/memfd:lent")) for link in links)


def test_what_was_received_is_what_the_server_loads(received):
    before, buckets = memory_files(), buckets_of(1)
    with ThreadPoolExecutor() as threads:  # side by side, one of them twice, as after a retry
        list(threads.map(lambda bucket: received.receive(3, bucket), [*buckets, buckets[2]]))
    assert memory_files() == before + len(buckets)
    with received.taken(manifest_of(3, buckets)) as said:
        assert equal(loaded(said), buckets) and equal(loaded(said), buckets), "a server of several processes"
    assert memory_files() == before


def test_lent_buckets_are_copied_aside_and_files_stand_in_for_the_others(received):
    lend, buckets = Lending(), buckets_of(1, 200)
    assert len(buckets) > 1
    lend(buckets[0])
    before = memory_files()
    for number, bucket in enumerate(buckets):
        if number % 2:
            received.receive(3, bucket)
        else:
            received.receive_lent(3, there := lend(bucket))
            lend(buckets[number - 1])  # the buffer is written again
            with pytest.raises(ValueError, match="has changed"):
                received.receive_lent(3, there)
    with received.taken(manifest_of(3, buckets)) as said:
        assert '"blocks": [["' in said and equal(loaded(said), buckets)
    assert memory_files() == before


def test_the_server_is_told_places_and_unpickles_bytes(received):
    """No weights, no handle of torch's, whose readers are counted in files, and no code."""
    large = list(make_buckets([("w", torch.zeros(1 << 18))], 1 << 20))
    received.receive_lent(1, Lending()(large[0]))
    with received.taken(manifest_of(1, large)) as said:
        told = base64.b64decode(as_tensors(said))
    assert len(told) < 4096
    names = {text for opcode, text, _ in pickletools.genops(told) if "UNICODE" in opcode.name}
    assert {name for name in names if "." in name or name.startswith("_")} == {
        "torch._utils",
        "_rebuild_tensor_v2",
        "torch.storage",
        "_load_from_bytes",
    }


def test_incomplete_foreign_and_corrupt_sets_are_refused_and_what_is_there_stays(received):
    buckets, other = buckets_of(1), buckets_of(2)
    for bucket in buckets[:-1]:
        received.receive(3, bucket)
    for manifest, message in (
        (manifest_of(3, buckets), "received and manifest differ in \\['w6'\\]"),
        (manifest_of(4, buckets), "version 4 were requested, but the received weights are of 3"),
    ):
        with pytest.raises(ValueError, match=message), received.taken(manifest):
            pass
    received.receive(3, other[-1])
    with pytest.raises(ValueError, match="checksums differ"), received.taken(manifest_of(3, buckets)):
        pass
    with pytest.raises(ValueError, match="corrupt"):
        received.receive(3, Bucket(buckets[0].tensors, buckets[0].checksum + 1))
    received.receive(3, buckets[-1])
    with received.taken(manifest_of(3, buckets)) as said:
        assert equal(loaded(said), buckets)


def test_a_newer_version_begins_anew_while_the_older_one_is_loaded(received):
    buckets, newer = buckets_of(1), buckets_of(2)
    for bucket in buckets:
        received.receive(3, bucket)
    with received.taken(manifest_of(3, buckets)) as said:
        for bucket in newer:
            received.receive(4, bucket)
        assert equal(loaded(said), buckets)
    with received.taken(manifest_of(4, newer)) as said:
        assert equal(loaded(said), newer)


def test_what_cannot_be_lent_is_read_from_its_file():
    class Full(FileBuffer):
        def __init__(self, nbytes, device):
            raise RuntimeError("cudaMalloc failed with CUDA's error 2")

    lent = Lending()(buckets_of(1, 4096)[0])
    for received, message in (
        (ServerWeights(["cpu"], {"cpu": Full}), "no memory for a copy.*error 2"),
        (ServerWeights(["cpu", "cpu"], FILES), "several devices reads files"),
        (ServerWeights(["cpu"]), "reads files"),
    ):
        with pytest.raises(ValueError, match=message):
            received.receive_lent(1, lent)


def test_a_trainer_that_dies_leaves_what_was_copied_from_it(received):
    tensors = {"w": torch.full((4, 1 << 10), 7.0, dtype=torch.bfloat16), "b": torch.arange(5.0)}
    [bucket] = make_buckets(tensors.items(), 1 << 16)
    with child(LENDER) as lender:
        lent = Lent(*ast.literal_eval(lender.stdout.readline()))
        there = LentBucket("/nowhere", bucket.names, bucket.checksum, bucket.nbytes, lent)
        received.receive_lent(1, there)
        kill(lender)
    with received.taken(manifest_of(1, [bucket])) as said:
        assert equal(loaded(said), [bucket])
    with pytest.raises(ValueError, match="cannot be read"):
        received.receive_lent(2, there)


def test_a_server_that_is_killed_while_it_reads_leaves_the_version_to_the_next_one(received):
    buckets, lend = buckets_of(1, 200), Lending()
    received.receive_lent(1, lend(buckets[0]))
    for bucket in buckets[1:]:
        received.receive(1, bucket)
    with received.taken(manifest_of(1, buckets)) as said:
        with child(SERVER, as_tensors(said)) as server:
            assert server.stdout.readline().startswith("w0 ")
            kill(server)
        with child(SERVER, as_tensors(said)) as server:
            assert server.stdout.readline().startswith("w0 ")
            server.stdin.write("\n")
            server.stdin.flush()
            assert ast.literal_eval(server.stdout.readline()) == sorted(tensors_of(buckets))


def test_a_handle_that_leads_nowhere_is_an_error_before_anything_is_loaded(received):
    [bucket] = buckets_of(1, 4096)
    received.receive_lent(1, Lending()(bucket))
    with received.taken(manifest_of(1, [bucket])) as said:
        pass
    with pytest.raises(OSError):
        loaded(said)


def test_a_loader_that_fails_ends_all_processes_of_its_server(received):
    """Their output ends with the last of them."""
    [bucket] = buckets_of(1, 4096)
    received.receive(1, bucket)
    with received.taken(manifest_of(1, [bucket])) as said, child(FAILING, as_tensors(said), start_new_session=True) as server:
        output, _ = server.communicate(timeout=60)
    assert server.returncode == -signal.SIGKILL and output.endswith("of another shape\n")
