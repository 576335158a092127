"""Broadcasts between members in threads of one process; between processes: tests/integration/test_weight_transport.py."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from roll.core.errors import BroadcastError
from roll.core.weights.store import BroadcastMember
from roll.transports import broadcast
from roll.transports.broadcast import BroadcastGroups, Rendezvous
from roll.transports.buckets import make_buckets


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


def update(pool, groups, members, buckets):
    """The first member sends; what the others receive."""
    sending = pool.submit(groups[0].send, members[0], buckets)
    receiving = [
        pool.submit(lambda own=own, member=member: list(own.receive(member, len(buckets))))
        for own, member in zip(groups[1:], members[1:], strict=True)
    ]
    received = [each.result(60) for each in receiving]
    sending.result(60)
    return received


@pytest.mark.parametrize("receivers", [1, 3])
def test_all_members_get_the_very_bits_under_their_names(rendezvous, receivers):
    buckets = list(make_buckets(tensors().items(), 100))
    assert len(buckets) > 2
    first, *others = rendezvous.members(f"bits-{receivers}", [""] * (receivers + 1))
    with ThreadPoolExecutor(receivers + 1) as pool:
        received = update(pool, [BroadcastGroups() for _ in range(receivers + 1)], [first, *others], buckets)
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
    first, other = rendezvous.members("damage", [""] * 2)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(BroadcastGroups().send, first, [bucket])
        [received] = BroadcastGroups().receive(other, 1)
        sending.result()
    with pytest.raises(ValueError, match="corrupt"):
        received.verify()


def test_a_member_that_never_comes_breaks_the_group_in_time():
    first, *_ = Rendezvous("127.0.0.1", 1.0).members("alone", [""] * 2)
    began = time.monotonic()
    with pytest.raises(BroadcastError, match="alone, member 0 of 2"):
        BroadcastGroups().send(first, [])
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("took", [0, 1])
def test_a_receiver_that_is_killed_in_mid_update_costs_this_update_and_nothing_else(took):
    """The sender, and a receiver that lives, hear of it in time, and the next broadcast is as good as any."""
    rendezvous = Rendezvous("127.0.0.1", 5.0)
    buckets = list(make_buckets(((f"w{i}", torch.full((1 << 20,), i)) for i in range(4)), 1 << 20))
    first, doomed, other = rendezvous.members(f"killed-{took}", [""] * 3)
    sender, receiver = BroadcastGroups(), BroadcastGroups()
    address = [first.address, str(first.port), first.group, str(doomed.sender), str(doomed.rank), str(doomed.size), str(took)]
    with subprocess.Popen([sys.executable, __file__, *address], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as killed:
        assert killed.stdout.readline() == b"ready\n"  # it has torch, and can join as fast as the others
        killed.stdin.write(b"\n")
        killed.stdin.flush()
        with ThreadPoolExecutor(2) as pool:
            began = time.monotonic()
            sending, receiving = (
                pool.submit(sender.send, first, buckets),
                pool.submit(lambda: list(receiver.receive(other, len(buckets)))),
            )
            for each in (sending, receiving):
                with pytest.raises(BroadcastError, match=f"killed-{took}, member . of 3"):
                    each.result(40)
        assert killed.wait(20) == -signal.SIGKILL
    assert time.monotonic() - began < 30
    first, other = rendezvous.members(f"after-{took}", [""] * 2)
    with ThreadPoolExecutor(2) as pool:
        [received] = update(pool, [sender, receiver], [first, other], buckets)
    assert [list(bucket.tensors) for bucket in received] == [list(bucket.tensors) for bucket in buckets]


def test_a_group_is_joined_once_for_all_updates_until_its_sender_has_another(rendezvous, monkeypatch):
    """Two senders, each with a group of its own; then the first with another receiver."""
    joined = []
    join = broadcast.join_group
    monkeypatch.setattr(broadcast, "join_group", lambda by, store: joined.append((by.group, by.rank)) or join(by, store))
    processes = [BroadcastGroups() for _ in range(4)]
    kept = [rendezvous.members(f"kept-{sender}", [""] * 2, sender=sender) for sender in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        for number in range(3):
            for sender, members in enumerate(kept):
                buckets = list(make_buckets([(f"w{number}", torch.full((5,), 10 * number + sender))], 100))
                [[received]] = update(pool, [processes[sender], processes[2]], members, buckets)
                received.verify()
                assert torch.equal(received.tensors[f"w{number}"], torch.full((5,), 10 * number + sender))
        assert sorted(joined) == [("kept-0", 0), ("kept-0", 1), ("kept-1", 0), ("kept-1", 1)]
        update(pool, [processes[0], processes[3]], rendezvous.members("another", [""] * 2), buckets)
        update(pool, [processes[1], processes[2]], kept[1], buckets)
    assert sorted(joined[4:]) == [("another", 0), ("another", 1)], "the second sender's is as it was"


def test_a_group_in_which_an_update_failed_is_not_used_again():
    """Its members may be anywhere in it."""
    rendezvous = Rendezvous("127.0.0.1", 1.0)
    members, (sender, receiver) = rendezvous.members("failed", [""] * 2), (BroadcastGroups(), BroadcastGroups())
    buckets = list(make_buckets(tensors().items(), 100))
    with ThreadPoolExecutor(2) as pool:
        update(pool, [sender, receiver], members, buckets)
        with pytest.raises(BroadcastError, match="failed, member 0 of 2"):
            sender.send(members[0], buckets)  # nobody receives
        elsewhere = Rendezvous("127.0.0.1", 20.0)
        for again in (rendezvous.members("again", [""] * 2), elsewhere.members("again", [""] * 2)):
            [received] = update(pool, [sender, receiver], again, buckets)
    assert [list(bucket.tensors) for bucket in received] == [list(bucket.tensors) for bucket in buckets]


def test_an_update_that_hangs_at_its_end_holds_up_no_other(rendezvous):
    """One of its members never says that it is done; the others have given it up meanwhile, as after the death of an engine."""
    sender, receiver, silent = (BroadcastGroups() for _ in range(3))
    first, other, last = rendezvous.members("hangs", [""] * 3)
    kept = rendezvous.members("kept meanwhile", [""] * 2, sender=1)
    [bucket] = buckets = list(make_buckets(tensors().items(), 1 << 20))
    with ThreadPoolExecutor(5) as pool:
        update(pool, [sender, receiver], kept, buckets)
        hanging = [
            pool.submit(sender.send, first, buckets),
            pool.submit(lambda: list(receiver.receive(other, 1))),
        ]
        never_done = silent.receive(last, 1)
        assert next(never_done).tensors.keys() == bucket.tensors.keys()
        update(pool, [sender, receiver], kept, buckets)
        update(pool, [sender, receiver], rendezvous.members("anew", [""] * 2), buckets)
        assert not any(each.done() for each in hanging)
        assert list(never_done) == []
        [each.result(60) for each in hanging]


if __name__ == "__main__":
    address, port, group, sender, rank, size, took = sys.argv[1:]
    print("ready", flush=True)
    sys.stdin.readline()
    received = BroadcastGroups().receive(BroadcastMember(address, int(port), group, int(sender), int(rank), int(size), 5.0), 4)
    for _ in range(1 + int(took)):
        next(received)
    os.kill(os.getpid(), signal.SIGKILL)
