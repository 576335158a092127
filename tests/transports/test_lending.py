"""Buckets that a trainer's rank lends to engines of its device, and the buffers in which they lie: with files in the place of a
GPU's memory, so that all but CUDA's own calls is what runs there."""

import ast
import asyncio
import ctypes
import signal
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
import torch
from lender_program import LENDER
from tiny_models import tiny_qwen2

from roll.core.errors import WorkerDied
from roll.core.weights.store import Buckets
from roll.core.weights.transport import gather_weights
from roll.strategies.infer.hf.shadow_weights import ShadowWeights
from roll.transports import loans, shared_buffers
from roll.transports.buckets import make_buckets
from roll.transports.ends import BroadcastReceiver, BroadcastSender
from roll.transports.lending import Lender, Lent, LentCopies, borrowed, check, seal, take
from roll.transports.loans import LendingHandleStore
from roll.transports.shared_buffers import CudaBuffer, FileBuffer, mapped

CPU = torch.device("cpu")
FILES = {"cpu": FileBuffer}
READER = """
import ast, sys, torch
from roll.transports.lending import Lent, borrowed
with borrowed(Lent(*ast.literal_eval(sys.argv[1])), torch.device("cpu")) as views:
    print(float(views["w"].float().mean()), flush=True)
    sys.stdin.read()
"""


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


def lend(lender, tensors, slot=0):
    lender.use(slot)
    place = lender.begin(1 << 16)
    for tensor in tensors.values():
        place(tensor)
    return lender.lent(list(tensors))


def foreign(lent):
    """The same of another process: here it is mapped as there."""
    return replace(lent, process=1)


class Trainer:
    """The ranks' halves."""

    def __init__(self, model, ranks=1, kinds=FILES):
        self._model, self._ranks = model, ranks
        self._ends = [BroadcastSender(kinds) for _ in range(ranks)]
        self.slots = []

    def __len__(self):
        return self._ranks

    async def call(self, rank, method, bucket_bytes, link, to_files, lends):
        assert (method, link, to_files, lends) == ("begin_export", None, True, True)
        place, named = self._ends[rank].lend(bucket_bytes), self._model.named_parameters()
        self._ends[rank].begin(make_buckets(named, bucket_bytes, rank, self._ranks, None, True, place))

    async def call_for_reference(self, rank, method, path, slot):
        self.slots.append(slot)
        bucket, made = self._ends[rank].next(path, slot)
        await asyncio.sleep(0)
        return bucket, made if made is None or len(made) < 4 else (*made[:3], foreign(made[3]))


class Engine:
    """hf_infer's half."""

    def __init__(self, seed=9):
        self.model = tiny_qwen2(50, seed=seed)
        self.shadow, self._end = ShadowWeights(self.model), BroadcastReceiver()
        self.by_handle = self.by_file = 0

    async def receive_lent(self, version, bucket):
        take(bucket, CPU, lambda there: self.shadow.receive(version, there))

    async def _deliver(self, version, argument):
        if await self._end.borrow(self, version, argument):
            self.by_handle += 1
            return True
        self.shadow.receive(version, argument.read())
        self.by_file += 1
        return False

    async def receive(self, version, bucket):
        if hasattr(bucket, "hand_to"):
            await bucket.hand_to(lambda argument: self._deliver(version, argument))
        else:
            await self._deliver(version, bucket.argument)


@pytest.fixture
def store():
    store = LendingHandleStore()
    yield store
    store.close()


async def update(store, trainer, engines, version):
    coming = Buckets(version)
    sending = [asyncio.ensure_future(coming.hand_over(engine.receive)) for engine in engines]
    weights = await gather_weights(trainer, store, version, 4_000, coming)
    await asyncio.gather(*sending)
    await store.publish(weights.manifest, weights.buckets)
    return weights


def equal(model, other):
    return all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("ranks", [1, 2])
def test_engines_copy_from_the_buffers_of_the_ranks(store, ranks):
    source, engines = tiny_qwen2(50, seed=1), [Engine(), Engine()]
    trainer = Trainer(source, ranks)
    weights = asyncio.run(update(store, trainer, engines, 1))
    for engine in engines:
        engine.shadow.flip(weights.manifest)
        assert equal(engine.model, source)
        assert (engine.by_handle, engine.by_file) == (len(weights.buckets), 0) and len(weights.buckets) > 5
    assert store.taken == 2 * weights.manifest.nbytes and set(trainer.slots) == {0, 1}


def test_an_engine_that_comes_later_reads_files(store):
    source, late = tiny_qwen2(50, seed=1), Engine()
    asyncio.run(update(store, Trainer(source), [Engine()], 1))
    asyncio.run(update(store, Trainer(tiny_qwen2(50, seed=2)), [], 2))
    late.shadow.flip(asyncio.run(store.pull(1, late.receive)))
    assert equal(late.model, source)
    assert late.by_handle == 0 < late.by_file, "the buffers hold buckets of version 2"


def test_memory_that_cannot_be_had_leaves_the_files(store):
    class Full(FileBuffer):
        def __init__(self, nbytes, device):
            raise RuntimeError("cudaMalloc failed with CUDA's error 2")

    source, engine = tiny_qwen2(50, seed=1), Engine()
    weights = asyncio.run(update(store, Trainer(source, kinds={"cpu": Full}), [engine], 1))
    engine.shadow.flip(weights.manifest)
    assert equal(engine.model, source) and engine.by_handle == 0


async def some_loan(store, lender, value, rank=0):
    """A bucket in the rank's next buffer; None if there is none that nobody reads."""
    [bucket] = make_buckets([("w", torch.full((64,), value))], 1 << 10)
    slot = await store.slot(rank)
    if slot is None:
        return None
    file = SimpleNamespace(path="/nowhere", names=bucket.names, checksum=bucket.checksum, nbytes=bucket.nbytes)
    return store.lend(rank, file, foreign(lend(lender, bucket.tensors, slot)))


def test_a_buffer_is_written_again_when_no_call_that_reads_it_is_open(store, monkeypatch):
    async def body():
        lender, goes_on, seen = Lender(FILES), asyncio.Event(), []

        async def read(argument):
            with borrowed(argument.lent, CPU) as views:
                await goes_on.wait()
                seen.append(float(views["w"].mean()))
            return True

        first, second = [await some_loan(store, lender, value) for value in (1.0, 2.0)]
        reading = [asyncio.ensure_future(first.hand_to(read))]
        waiting = asyncio.ensure_future(some_loan(store, lender, 3.0))
        for _ in range(9):
            await asyncio.sleep(0)
        assert not waiting.done(), "the rank waits for the buffer of its bucket before the last"
        goes_on.set()
        assert await waiting
        goes_on.clear()
        reading.append(asyncio.ensure_future(second.hand_to(read)))  # still lent
        await asyncio.sleep(0)
        monkeypatch.setattr(loans, "PATIENCE_S", 0.0)
        assert await some_loan(store, lender, 4.0), "a reader that hangs has one buffer, and there is the other"
        monkeypatch.setattr(loans, "PATIENCE_S", 1e9)
        assert await some_loan(store, lender, 5.0), "it is waited for once"
        goes_on.set()
        await asyncio.gather(*reading)
        assert seen == [1.0, 2.0]

    asyncio.run(body())


def test_an_engine_that_dies_gives_its_buffer_back(store):
    async def body():
        lender = Lender(FILES)

        async def dies(argument):
            raise WorkerDied("worker actor_infer-0 died")

        for value in range(5):
            with pytest.raises(WorkerDied):
                await (await some_loan(store, lender, float(value))).hand_to(dies)

    asyncio.run(body())
    assert store.taken == 0


def test_a_buffer_that_changes_under_a_reader_is_found_before_anything_is_kept():
    lender, copies = Lender(FILES), LentCopies()
    lent = foreign(lend(lender, {"w": torch.ones(100), "b": torch.zeros(3, dtype=torch.bfloat16)}))
    copies.receive(1, lent, CPU)
    lend(lender, {"w": torch.ones(100) * 2, "b": torch.zeros(3, dtype=torch.bfloat16)})
    with pytest.raises(ValueError, match="has changed"):
        LentCopies().receive(1, lent, CPU)
    [(_, kept), _] = copies.take(["w", "b"])
    assert torch.equal(kept, torch.ones(100))


def test_a_reader_that_is_killed_leaves_the_lender_alone():
    lender = Lender(FILES)
    lent = lend(lender, {"w": torch.full((64,), 3.0)})
    with child(READER, lent.plain()) as reader:
        assert reader.stdout.readline().strip() == "3.0"
        kill(reader)
    assert float(mean_of(foreign(lend(lender, {"w": torch.full((64,), 4.0)})))) == 4.0


def mean_of(lent):
    with borrowed(lent, CPU) as views:
        return views["w"].float().mean()


def test_what_a_lender_that_is_killed_has_lent_stays_whole_under_its_readers():
    with child(LENDER) as lender:
        lent = Lent(*ast.literal_eval(lender.stdout.readline()))
        with borrowed(lent, CPU) as views:
            kill(lender)
            check(lent, views)
            assert views["w"].shape == (4, 1024) and float(views["w"].float().mean()) == 7.0
            assert views["b"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="cannot be read"):
        mean_of(lent)


def test_a_handle_is_of_plain_values():
    lent = lend(Lender(FILES), {"w": torch.ones(2, 3), "v": torch.ones(1, dtype=torch.bfloat16)})
    again = Lent(*msgspec.msgpack.decode(msgspec.msgpack.encode(lent.plain())))
    assert (again.memory, again.handle, again.shapes, again.seals) == (lent.memory, lent.handle, lent.shapes, lent.seals)


def test_other_devices_and_the_process_itself_read_files():
    lent = lend(Lender(FILES), {"w": torch.ones(2)})
    with pytest.raises(ValueError, match="of the process itself"):
        mean_of(lent)
    with pytest.raises(ValueError, match="another device"):
        mean_of(replace(lent, process=1, memory="cuda 4"))


def test_a_tensor_larger_than_a_bucket_has_a_buffer_of_its_size():
    lender = Lender(FILES)
    for size in (10, 1 << 18, 20):
        lent = foreign(lend(lender, {"w": torch.arange(size)}))
        with borrowed(lent, CPU) as views:
            assert torch.equal(views["w"], torch.arange(size))


def test_a_seal_is_of_bytes_and_their_order():
    generator = torch.Generator().manual_seed(0)
    content = torch.randint(0, 256, (3_000_017,), generator=generator, dtype=torch.uint8)  # more than is summed at once
    found = int(seal(content))
    assert int(seal(content.clone())) == found and int(seal(torch.cat([content[:3], content])[3:])) == found
    for place in (0, 1_500_000, 3_000_016):
        other = content.clone()
        other[place] ^= 1
        assert int(seal(other)) != found
    assert int(seal(content.flip(0))) != found
    swapped = torch.cat([content[8:16], content[:8], content[16:]])
    assert int(seal(swapped)) != found


RUNTIME = """
#include <stdlib.h>
#include <string.h>
typedef struct { char reserved[64]; } cudaIpcMemHandle_t;  /* as in driver_types.h */
static void *blocks[8];
int there(void) { int count = 0; for (int i = 0; i < 8; i++) count += blocks[i] != 0; return count; }
static int place(void *block) { for (int i = 0; i < 8; i++) if (blocks[i] == block) return i; return -1; }
int cudaMalloc(void **block, size_t size) { return (*block = blocks[place(0)] = malloc(size)) == 0; }
int cudaFree(void *block) { int at = place(block); if (at < 0) return 1; free(block); blocks[at] = 0; return 0; }
int cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *block) {
  if (place(block) < 0) return 1;
  for (int i = 0; i < 64; i++) handle->reserved[i] = (char)(3 * i);
  memcpy(handle->reserved + 8, &block, sizeof block);
  return 0;
}
int cudaIpcOpenMemHandle(void **block, cudaIpcMemHandle_t handle, unsigned int flags) {
  for (int i = 0; i < 64; i++) if ((i < 8 || i > 15) && handle.reserved[i] != (char)(3 * i)) return 1;
  memcpy(block, handle.reserved + 8, sizeof *block);
  return flags != 1 || place(*block) < 0;
}
int cudaIpcCloseMemHandle(void *block) { return place(block) < 0; }
int cudaGetLastError(void) { return 0; }
"""
"""CUDA's calls by their own declarations, on host memory."""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cudart")
    (folder / "cudart.c").write_text(RUNTIME)
    command = ["cc", "-shared", "-fPIC", "-o", folder / "libcudart.so", folder / "cudart.c"]
    subprocess.run(command, check=True, timeout=60)
    return ctypes.CDLL(str(folder / "libcudart.so"))


class Runtime:
    """The calls as they are made."""

    def __init__(self, library):
        self.library, self.calls, self.refuses = library, [], set()

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append(name)
            return 217 if name in self.refuses else getattr(self.library, name)(*arguments)

        return call


@pytest.fixture
def runtime(library, monkeypatch):
    runtime = Runtime(library)
    monkeypatch.setattr(shared_buffers, "_runtime", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    stream = SimpleNamespace(synchronize=lambda: runtime.calls.append("finish"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(
        shared_buffers,
        "_tensor_at",
        lambda address, nbytes, _: torch.frombuffer((ctypes.c_char * nbytes).from_address(address.value), dtype=torch.uint8),
    )
    return runtime


def test_a_block_of_a_gpu_is_opened_and_closed_by_the_calls_of_cuda(runtime):
    gpu = torch.device("cuda", 0)
    buffer = CudaBuffer(1 << 12, gpu)
    buffer.memory.copy_(torch.arange(1 << 12) % 251)
    assert len(buffer.handle) == 64
    with mapped(buffer.handle, 1 << 12, gpu) as memory:
        assert torch.equal(memory, buffer.memory)
    buffer.close()
    made = ["finish", "cudaMalloc", "cudaIpcGetMemHandle"]
    read = ["finish", "cudaIpcOpenMemHandle", "finish", "cudaIpcCloseMemHandle"]
    assert runtime.calls == [*made, *read, "cudaFree"] and not runtime.library.there()


@pytest.mark.parametrize("refused", ["cudaMalloc", "cudaIpcGetMemHandle", "cudaIpcOpenMemHandle"])
def test_what_cuda_refuses_is_an_error_that_torch_does_not_meet_again(runtime, refused):
    runtime.refuses = {refused}
    with pytest.raises(RuntimeError, match=f"{refused} failed with CUDA's error 217"):
        buffer = CudaBuffer(16, torch.device("cuda", 0))
        with mapped(buffer.handle, 16, torch.device("cuda", 0)):
            pass
    assert runtime.calls[runtime.calls.index(refused) + 1] == "cudaGetLastError"
    if refused == "cudaIpcOpenMemHandle":
        buffer.close()
    assert not runtime.library.there()
