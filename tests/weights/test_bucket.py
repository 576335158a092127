import gc
import itertools
import pickle
import weakref
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.core.weights.bucket import Bucket, checksum, manifest_of
from roll.transports.buckets import PinnedCopies, host_copies, make_buckets

cloudpickle = pytest.importorskip("ray.cloudpickle", reason="the pickler that carries buckets between Ray's workers")
TENSORS = {
    "matrix.bf16": torch.randn(7, 5, generator=torch.Generator().manual_seed(0)).bfloat16(),
    "vector.fp32": torch.randn(11, generator=torch.Generator().manual_seed(1)),
    "scalar.fp32": torch.tensor(3.25),
    "scalar.bf16": torch.tensor(-1.5, dtype=torch.bfloat16),
    "counter.int64": torch.tensor([1, -(2**40)]),
    "mask.bool": torch.tensor([True, False, True]),
    "half": torch.randn(3, 1, 2, generator=torch.Generator().manual_seed(2)).half(),
    "empty": torch.zeros(0, 4),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
}


def one_bucket():
    (bucket,) = make_buckets(TENSORS.items(), 1 << 20)
    return bucket


def assert_same(bucket, tensors):
    assert list(bucket.tensors) == list(tensors)
    for name, tensor in tensors.items():
        got = bucket.tensors[name]
        assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(got, tensor)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(4, 400))
def test_buckets_keep_order_and_bound_and_lose_nothing(sizes, bound):
    """float32 tensors of 1 to 50 numbers. Only a tensor that is larger than the bound makes a larger bucket, alone."""
    named = [(f"w{i}", torch.full((size,), float(i))) for i, size in enumerate(sizes)]
    buckets = list(make_buckets(named, bound))
    assert [name for bucket in buckets for name in bucket.tensors] == [name for name, _ in named]
    for bucket in buckets:
        assert bucket.nbytes == sum(4 * t.numel() for t in bucket.tensors.values())
        assert bucket.nbytes <= bound or len(bucket.tensors) == 1
        bucket.verify()
    for one, following in itertools.pairwise(buckets):
        first = next(iter(following.tensors.values()))
        assert one.nbytes + 4 * first.numel() > bound, "no bucket is closed before it is full"
    manifest = manifest_of(3, buckets)
    assert manifest.version == 3
    assert manifest.names == [name for name, _ in named]
    assert manifest.nbytes == 4 * sum(sizes)
    assert manifest.checksums == [bucket.checksum for bucket in buckets]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.integers(4, 400), st.integers(1, 4))
def test_ranks_share_the_buckets_that_one_rank_would_make(sizes, bound, ranks):
    named = [(f"w{i}", torch.full((size,), float(i))) for i, size in enumerate(sizes)]
    whole = [list(bucket.tensors) for bucket in make_buckets(named, bound)]
    shares = [[list(bucket.tensors) for bucket in make_buckets(named, bound, rank, ranks)] for rank in range(ranks)]
    assert [whole[rank::ranks] for rank in range(ranks)] == shares


def test_a_bucket_stays_what_it_was_while_training_goes_on():
    weight = torch.nn.Parameter(torch.ones(4))
    (bucket,) = make_buckets([("w", weight)], 100)
    with torch.no_grad():
        weight.add_(1)
    assert torch.equal(bucket.tensors["w"], torch.ones(4))
    assert not bucket.tensors["w"].requires_grad
    bucket.verify()


@pytest.mark.parametrize("name", [name for name in TENSORS if TENSORS[name].numel()])
def test_one_flipped_bit_of_any_tensor_is_refused(name):
    bucket = one_bucket()
    raw = bucket.tensors[name].reshape(-1).view(torch.uint8)
    raw[len(raw) // 2] ^= 1
    with pytest.raises(ValueError, match=f"corrupt.*{name}"):
        bucket.verify()


def test_two_exchanged_tensors_are_refused():
    """Equal shapes, equal bytes in all: only the names tell."""
    bucket = one_bucket()
    bucket.tensors["vector.fp32"], bucket.tensors["x"] = torch.zeros(11), bucket.tensors["vector.fp32"]
    with pytest.raises(ValueError, match="corrupt"):
        bucket.verify()


def test_the_checksum_does_not_depend_on_the_order_of_the_dict():
    assert checksum(TENSORS) == checksum(dict(reversed(TENSORS.items())))


@pytest.mark.parametrize("dumps", [cloudpickle.dumps, pickle.dumps])
def test_a_bucket_travels_unchanged(dumps):
    arrived = pickle.loads(dumps(one_bucket()))
    assert_same(arrived, TENSORS)
    arrived.verify()


def test_the_bytes_of_the_tensors_travel_out_of_band():
    """So they go through shared memory without a copy, as Ray does it; the receiver gets them read-only."""
    bucket = one_bucket()
    buffers = []
    stream = cloudpickle.dumps(bucket, protocol=5, buffer_callback=buffers.append)
    assert sum(len(buffer.raw()) for buffer in buffers) == bucket.nbytes
    arrived = pickle.loads(stream, buffers=[bytes(buffer.raw()) for buffer in buffers])
    assert_same(arrived, TENSORS)
    arrived.verify()


def test_an_empty_model_has_no_bucket():
    assert list(make_buckets([], 10)) == []
    Bucket({}, checksum({})).verify()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.integers(4, 400), st.integers(2, 4))
def test_the_ranks_stop_for_their_buckets_at_the_same_tensors(sizes, bound, ranks):
    """They go through the tensors by collectives: who stopped earlier than the others would have them wait while it hashes."""
    named = [(f"w{i}", torch.full((size,), float(i))) for i, size in enumerate(sizes)]

    def stops(rank):
        passed = []
        tensors = (passed.append(each) or each for each in named)
        return [len(passed) for _ in make_buckets(tensors, bound, rank, ranks)]

    first, *others = (stops(rank) for rank in range(ranks))
    assert all(first[: len(other)] == other for other in others) and all(len(first) - len(other) <= 1 for other in others)


class NotedCopies:
    """Copies whose bytes arrive only when their mark has been waited for."""

    def __init__(self):
        self.events, self.arriving, self.alive = [], [], weakref.WeakSet()

    def copy(self, tensor):
        there = torch.full_like(tensor, -1)
        self.alive.add(there)
        self.arriving.append((there, tensor.clone()))
        self.events.append("copy")
        return there

    def mark(self):
        number, arriving, self.arriving = self.events.count("mark"), self.arriving, []
        self.events.append("mark")

        def synchronize():
            self.events.append(f"wait {number}")
            for there, tensor in arriving:
                there.copy_(tensor)

        return SimpleNamespace(synchronize=synchronize)


def test_the_next_bucket_is_copied_from_the_device_while_one_is_handed_over():
    copies, weight = NotedCopies(), torch.arange(4.0)
    buckets = make_buckets(((f"w{i}", weight + i) for i in range(4)), 16, copies=copies)
    for i in range(4):
        bucket = next(buckets)
        copies.events.append(f"hand over {i}")
        assert torch.equal(bucket.tensors[f"w{i}"], weight + i)
        bucket.verify()
        del bucket
        gc.collect()
        assert len(copies.alive) <= 2, "page-locked memory for two buckets is enough"
    assert next(buckets, None) is None
    ahead = ["copy", "mark"]
    handed = [[f"wait {i}", f"hand over {i}"] for i in range(4)]
    assert copies.events == [*ahead, *ahead, *handed[0], *ahead, *handed[1], *ahead, *handed[2], *handed[3]]


def test_copies_go_through_page_locked_memory_where_there_is_a_device_and_nowhere_else():
    assert host_copies(torch.device("cpu")) is None
    assert isinstance(host_copies(torch.device("cuda:1")), PinnedCopies)
