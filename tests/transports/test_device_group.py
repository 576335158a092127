"""Weights from device to device, with a group that stands for NCCL's: its order, its failures and its silence. NCCL itself: not
run on a GPU."""

import os
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from roll.core.errors import BroadcastError
from roll.transports import broadcast
from roll.transports.broadcast import ON_ERROR, BroadcastGroups, DeviceGroup, Rendezvous, nccl_group
from roll.transports.buckets import make_buckets

CPU = torch.device("cpu")


class Wire:
    """What the members of one group share."""

    def __init__(self, size):
        self.queues = [queue.SimpleQueue() for _ in range(size)]
        self.events = []


class FakeGroup:
    """NCCL's calls, through host memory. `breaks`: in which broadcast, and how: "dies" raises, "silent" never answers."""

    def __init__(self, wire, rank, breaks=None):
        self.wire, self.rank, self.breaks, self.calls = wire, rank, breaks or {}, 0
        self.aborted = threading.Event()

    def broadcast(self, tensor, root):
        number, self.calls = self.calls, self.calls + 1
        self.wire.events.append((self.rank, number, tensor.numel()))
        if self.breaks.get(number) == "dies":
            raise RuntimeError("NCCL error: remote process exited")

        def wait():
            if self.breaks.get(number) == "silent":
                self.aborted.wait()
                raise RuntimeError("aborted")
            if self.rank == root:
                for other in self.wire.queues[1:]:
                    other.put(tensor.clone())
            else:
                tensor.copy_(self.wire.queues[self.rank].get())

        return SimpleNamespace(wait=wait)

    def abort(self):
        self.aborted.set()


def members(monkeypatch, size, breaks=None, timeout_s=20.0):
    """The members of a group, with what NCCL would break in each."""
    wire, groups = Wire(size), {}

    def made(store, rank, size, device, limit):
        groups[rank] = FakeGroup(wire, rank, (breaks or {}).get(rank))
        return DeviceGroup(groups[rank], device, limit)

    monkeypatch.setattr(broadcast, "nccl_group", made)
    wire.rendezvous = Rendezvous("127.0.0.1", timeout_s)  # which lives as long as the test
    return wire.rendezvous.members("fake", ["cpu"] * size), wire, groups


def buckets():
    generator = torch.Generator().manual_seed(0)
    return list(make_buckets(((f"w{i}", torch.randn(9, 5, generator=generator).bfloat16()) for i in range(6)), 200))


def test_buckets_arrive_in_their_order_and_with_their_bits(monkeypatch):
    (first, *others), wire, _ = members(monkeypatch, 3)
    with ThreadPoolExecutor(3) as pool:
        sending = pool.submit(BroadcastGroups().send, first, buckets())
        receiving = [
            pool.submit(lambda member=member: list(BroadcastGroups().receive(member, len(buckets())))) for member in others
        ]
        arrived = [each.result() for each in receiving]
        sending.result()
    for received in arrived:
        for got, sent in zip(received, buckets(), strict=True):
            got.verify()
            assert got.tensors.keys() == sent.tensors.keys()
            assert all(torch.equal(got.tensors[name], tensor) for name, tensor in sent.tensors.items())
    by_rank = [[event[1:] for event in wire.events if event[0] == rank] for rank in range(3)]
    assert by_rank[0] == by_rank[1] == by_rank[2], "every member makes the same calls, with as many numbers, in one order"
    assert [size for _, size in by_rank[0]][::3] == [2] * len(buckets()), "sizes, description, bytes: bucket by bucket"


@pytest.mark.parametrize("at", [0, 4])
def test_a_member_that_fails_in_mid_update_ends_its_part_and_its_group(monkeypatch, at):
    (first, _), _, groups = members(monkeypatch, 2, {0: {at: "dies"}})
    with pytest.raises(BroadcastError, match="member 0 of 2: NCCL error: remote process exited"):
        BroadcastGroups().send(first, buckets())
    assert groups[0].aborted.wait(10) and groups[0].calls == at + 1, "nothing is sent after it"


@pytest.mark.parametrize("rank", [0, 1])
def test_silence_is_ended_by_our_limit_not_by_a_watchdog(monkeypatch, rank):
    """NCCL has no limit where a member does not come; its watchdog would end the process."""
    (*both,), _, groups = members(monkeypatch, 2, {rank: {0: "silent"}}, timeout_s=0.3)
    began = time.monotonic()
    with pytest.raises(BroadcastError, match=rf"member {rank} of 2: nothing for 0\.3 s"):
        BroadcastGroups().send(both[0], buckets()) if rank == 0 else list(BroadcastGroups().receive(both[1], 1))
    assert time.monotonic() - began < 10
    assert groups[rank].aborted.wait(10)


def test_a_sender_is_not_done_before_all_members_have_the_last_bucket(monkeypatch):
    """It would take the group along, and what is still on its way to others."""
    (first, _), wire, _ = members(monkeypatch, 2, timeout_s=0.5)
    with pytest.raises(BroadcastError, match=r"member 0 of 2: .*all are done"):
        BroadcastGroups().send(first, buckets())
    assert len(wire.events) == 3 * len(buckets()), "it has sent everything"


def test_an_error_of_nccl_is_not_left_to_torchs_watchdog_which_would_end_the_trainer(monkeypatch):
    """Only for this group: the variable is read when a group is made."""
    made = []

    class Nccl:
        class Options:
            pass

        def __init__(self, *args):
            made.append(os.environ[ON_ERROR])

    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", Nccl, raising=False)
    monkeypatch.delenv(ON_ERROR, raising=False)
    nccl_group(None, 0, 2, CPU, 1.0)
    assert ON_ERROR not in os.environ
    monkeypatch.setenv(ON_ERROR, "3")
    nccl_group(None, 0, 2, CPU, 1.0)
    assert (made, os.environ[ON_ERROR]) == (["0", "0"], "3"), "0: NoHandling"


def test_the_limit_holds_though_aborting_blocks():
    never = threading.Event()
    group = SimpleNamespace(broadcast=lambda *_: SimpleNamespace(wait=never.wait), abort=never.wait)
    began = time.monotonic()
    exchanges = DeviceGroup(group, CPU, 0.2)
    with pytest.raises(RuntimeError, match="nothing for"):
        exchanges.exchange(torch.zeros(2))
    exchanges.abort()
    assert time.monotonic() - began < 10
    never.set()


@pytest.mark.skipif(torch.distributed.is_nccl_available(), reason="torch has NCCL")
def test_a_torch_without_nccl_says_so():
    with pytest.raises(RuntimeError, match="torch is built without NCCL"):
        nccl_group(None, 0, 2, torch.device("cuda:0"), 1.0)
