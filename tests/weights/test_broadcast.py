"""Broadcasts between members in threads of one process; between processes: tests/integration/test_weight_transport.py."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from roll.errors import BroadcastError
from roll.weights.broadcast import Member, Rendezvous
from roll.weights.bucket import make_buckets


@pytest.fixture(scope="module")
def rendezvous():
    return Rendezvous("127.0.0.1", 20.0)


def tensors():
    generator = torch.Generator().manual_seed(0)
    return {
        "odd": torch.randn(7, 3, generator=generator),
        "half": torch.randn(5, generator=generator).to(torch.bfloat16),
        "scalar": torch.tensor(3),
        "flag": torch.tensor([True, False, True]),
        "Große.Name": torch.randn(64, 33, generator=generator, dtype=torch.float64),
    }


@pytest.mark.parametrize("receivers", [1, 3])
def test_all_members_get_the_very_bits_under_their_names(rendezvous, receivers):
    buckets = list(make_buckets(tensors().items(), 100))
    assert len(buckets) > 2
    first, *others = rendezvous.members(f"bits-{receivers}", receivers + 1)
    with ThreadPoolExecutor(receivers + 1) as pool:
        sending = pool.submit(first.send, buckets)
        received = [
            future.result() for future in [pool.submit(lambda s=member: list(s.receive(len(buckets)))) for member in others]
        ]
        sending.result()
    for member in received:
        for bucket in member:
            bucket.verify()
        found = {name: tensor for bucket in member for name, tensor in bucket.tensors.items()}
        assert list(found) == list(tensors())
        for name, tensor in tensors().items():
            assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)


def test_what_was_damaged_on_the_way_is_found(rendezvous):
    [bucket] = make_buckets(tensors().items(), 1 << 20)
    bucket.tensors["odd"][0, 0] += 1
    first, other = rendezvous.members("damage", 2)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(first.send, [bucket])
        [received] = other.receive(1)
        sending.result()
    with pytest.raises(ValueError, match="corrupt"):
        received.verify()


def test_a_member_that_never_comes_breaks_the_group_in_time():
    first, *_ = Rendezvous("127.0.0.1", 1.0).members("alone", 2)
    began = time.monotonic()
    with pytest.raises(BroadcastError, match="alone, member 0 of 2"):
        first.send([])
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("took", [0, 1])
def test_a_receiver_that_is_killed_in_mid_update_costs_this_update_and_nothing_else(took):
    """The sender, and a receiver that lives, hear of it in time, and the next broadcast is as good as any."""
    rendezvous = Rendezvous("127.0.0.1", 5.0)
    buckets = list(make_buckets(((f"w{i}", torch.full((1 << 20,), i)) for i in range(4)), 1 << 20))
    first, doomed, other = rendezvous.members(f"killed-{took}", 3)
    address = [first.address, str(first.port), first.group, str(doomed.rank), str(doomed.size), str(took)]
    with subprocess.Popen([sys.executable, __file__, *address], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as killed:
        assert killed.stdout.readline() == b"ready\n"  # it has torch, and can join as fast as the others
        killed.stdin.write(b"\n")
        killed.stdin.flush()
        with ThreadPoolExecutor(2) as pool:
            began = time.monotonic()
            sending, receiving = pool.submit(first.send, buckets), pool.submit(lambda: list(other.receive(len(buckets))))
            for each in (sending, receiving):
                with pytest.raises(BroadcastError, match=f"killed-{took}, member . of 3"):
                    each.result(40)
        assert killed.wait(20) == -signal.SIGKILL
    assert time.monotonic() - began < 30
    first, other = rendezvous.members(f"after-{took}", 2)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(first.send, buckets)
        assert [list(bucket.tensors) for bucket in other.receive(len(buckets))] == [list(bucket.tensors) for bucket in buckets]
        sending.result()


if __name__ == "__main__":
    address, port, group, rank, size, took = sys.argv[1:]
    print("ready", flush=True)
    sys.stdin.readline()
    received = Member(address, int(port), group, int(rank), int(size), 5.0).receive(4)
    for _ in range(1 + int(took)):
        next(received)
    os.kill(os.getpid(), signal.SIGKILL)
