import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.core.distributed.device_locks import DeviceLocks, LockTable

DEVICES = {"train": frozenset({0, 1}), "infer": frozenset({1, 2}), "reference": frozenset({3})}


def test_disjoint_roles_do_not_wait_and_overlapping_ones_do():
    table = LockTable(DEVICES)
    train = table.request("train")
    assert table.request("reference").granted
    infer = table.request("infer")
    assert not infer.granted
    assert table.blockers("infer") == ["train"]
    table.release(train)
    assert infer.granted


def test_lanes_of_one_role_share_the_devices_but_do_not_overtake_another_role():
    table = LockTable(DEVICES)
    first = table.request("infer")
    train = table.request("train")
    late = table.request("infer")
    assert first.granted and not late.granted, "else a stream of rollouts would starve the trainer"
    table.release(first)
    assert train.granted and not late.granted
    table.release(train)
    assert late.granted


def test_a_request_that_joins_overtakes_while_its_own_role_has_the_devices_and_waits_otherwise():
    table = LockTable(DEVICES)
    first = table.request("infer")
    train = table.request("train")
    joining = table.request("infer", joins=True)
    assert joining.granted and not train.granted, "what holds the devices may wait for it, and train waits for that"
    table.release(first)
    table.release(joining)
    assert train.granted
    lane, next_train = table.request("infer"), table.request("train")
    joining = table.request("infer", joins=True)
    assert not joining.granted, "it is the trainer's turn"
    table.release(train)
    assert lane.granted and joining.granted and not next_train.granted


@given(st.integers(0, 2**32))
def test_overlapping_roles_never_hold_together_and_everyone_is_served(seed):
    rng = random.Random(seed)
    table = LockTable(DEVICES)
    requests = []
    for _ in range(50):
        requests.append(table.request(rng.choice(list(DEVICES)), joins=rng.random() < 0.2))
        granted = [r for r in requests if r.granted]
        if granted and rng.random() < 0.6:
            chosen = rng.choice(granted)
            table.release(chosen)
            requests.remove(chosen)
        assert not ({"train", "infer"} <= set(table.held))
    while requests:
        chosen = next(r for r in requests if r.granted)
        table.release(chosen)
        requests.remove(chosen)
    assert not table.held and not table.waiting


def test_an_exception_releases_the_devices_and_a_change_of_hands_sleeps_and_wakes():
    async def main():
        locks = DeviceLocks(DEVICES)
        calls = []

        async def note(what):
            calls.append(what)

        locks.on_turn("infer", lambda: note("infer sleeps"), lambda: note("infer wakes"))
        async with locks.hold("infer"):
            pass
        with pytest.raises(ValueError, match="boom"):
            async with locks.hold("train"):
                raise ValueError("boom")
        async with locks.hold("infer"):
            assert calls == ["infer sleeps", "infer wakes"]

    asyncio.run(asyncio.wait_for(main(), 5))


def test_a_role_that_works_beside_all_others_neither_waits_nor_sleeps():
    table = LockTable(DEVICES, frozenset({"infer"}))
    train, infer = table.request("train"), table.request("infer")
    assert train.granted and infer.granted and not table.conflict("train", "infer")
    locks = DeviceLocks(DEVICES, frozenset({"infer"}))
    assert not locks.shared("infer") and not locks.shared("train")
