"""The cores of a machine follow the work: nobody has less than its share, nobody gets more than the machine has."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roll.core.distributed import machine
from roll.platform.cores import PLACES, Contention, Cores, threads_of

SHARES = st.lists(st.integers(1, 16), max_size=8)


@pytest.fixture
def table(tmp_path):
    threads = torch.get_num_threads()
    yield tmp_path / "cores"
    torch.set_num_threads(threads)


@given(st.integers(1, 256), st.integers(1, 16), SHARES)
def test_all_that_compute_have_their_shares_and_divide_what_is_left(cores, own, others):
    shares = [own, *others]
    threads = [threads_of(cores, share, shares[:i] + shares[i + 1 :]) for i, share in enumerate(shares)]
    assert all(got >= share for got, share in zip(threads, shares, strict=True))
    left = cores - sum(shares)
    borrowed = sum(threads) - sum(shares)
    assert 0 <= borrowed <= max(0, left) and max(0, left) - borrowed < len(shares)


def test_who_computes_alone_has_all_cores_and_gives_back_those_of_who_begins(table):
    trainer, engine, scorer = (Cores(1, table=table, cores=3) for _ in range(3))
    assert trainer.threads == 3
    with trainer.computing():
        assert torch.get_num_threads() == 3
        engine.begin()
        trainer.follow()
        assert torch.get_num_threads() == 1 and engine.threads == 1, "one core is left, which two cannot divide"
        with scorer.computing():
            assert (trainer.threads, engine.threads, scorer.threads) == (1, 1, 1)
        engine.end()
        assert trainer.threads == 3
    assert engine.threads == 3


class Borrower:
    """Looks every 10 ms whether it may borrow."""

    def __init__(self):
        self.contention, self.now, self.waited = Contention(), 0.0, 0.0

    def borrowed_s(self, seconds, waiting):
        """Of so many, in which its threads wait for this share of the time."""
        borrowed = 0
        for _ in range(round(100 * seconds)):
            self.now, self.waited = self.now + 0.01, self.waited + 0.01 * waiting
            borrowed += self.contention.lets(self.now, lambda: self.waited)
        return borrowed / 100


def test_who_has_to_wait_for_a_core_gives_back_what_it_borrowed_for_longer_and_longer():
    borrower = Borrower()
    assert borrower.borrowed_s(10, waiting=0.05) == 10
    assert borrower.borrowed_s(1.2, waiting=0.5) <= 0.25, "a window of 0.2 s, then a pause of 1 s"
    assert borrower.borrowed_s(300, waiting=0.5) < 4, "a busy machine costs next to nothing"
    borrower.borrowed_s(40, waiting=0.0)
    assert borrower.borrowed_s(10, waiting=0.0) == 10
    assert borrower.borrowed_s(0.4, waiting=0.5) <= 0.25
    assert borrower.borrowed_s(2, waiting=0.0) == pytest.approx(1.2, abs=0.05), "the pause is short again"


def test_a_window_in_which_another_worker_began_says_nothing():
    borrower = Borrower()
    for _ in range(20):
        assert borrower.borrowed_s(0.15, waiting=1.0) == 0.15
        borrower.contention.forget()


def test_a_thread_that_shares_a_core_waits_for_it():
    """Two that compute on one core: each waits half of the time."""
    code = (
        "import os, threading, time, hashlib\n"
        "from roll.platform.cores import waited_s\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "def work(until, data=bytes(1 << 20)):\n"
        "    while time.monotonic() < until: hashlib.sha256(data)\n"  # without Python's lock
        "def waits(threads, before):\n"
        "    end = time.monotonic() + 1.0\n"
        "    all = [threading.Thread(target=work, args=(end,)) for _ in range(threads)]\n"
        "    [thread.start() for thread in all]; time.sleep(0.8)\n"
        "    return waited_s() - before\n"
        "print(waits(4, waited_s()))"
    )
    waited = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert waited > 0.8, "of 0.8 s each of four has a fourth at most, and waits for the others"


def test_who_may_not_borrow_lends(table):
    exact, other = Cores(1, borrows=False, table=table, cores=4), Cores(1, table=table, cores=4)
    assert (exact.threads, other.threads) == (1, 4)
    exact.begin()
    assert (exact.threads, other.threads) == (1, 2)


COMPUTES_FOR_EVER = """
import pathlib, sys, time
from roll.platform.cores import Cores
cores = Cores(2, table=pathlib.Path(sys.argv[1]), cores=4)
cores.begin()
print("computes", flush=True)
time.sleep(600)
"""


def test_a_worker_of_another_process_counts_until_it_is_killed(table):
    here = Cores(1, table=table, cores=4)
    command = [sys.executable, "-c", COMPUTES_FOR_EVER, str(table)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "computes\n"
        assert here.threads == 1, "4 cores, of which the other has 2: one is left, which two cannot divide"
        other.send_signal(signal.SIGKILL)
    again = Cores(2, table=table, cores=4)  # a worker in the dead one's place
    assert (here.threads, again.threads) == (4, 4)


def test_a_worker_that_is_gone_leaves_its_place(table):
    here = Cores(1, table=table, cores=2)
    for _ in range(2 * PLACES):
        Cores(1, table=table, cores=2).begin()
    gc.collect()
    Cores(1, table=table, cores=2)
    assert here.threads == 2


def test_a_worker_without_a_place_keeps_to_its_share(table, monkeypatch):
    workers = [Cores(1, table=table, cores=2) for _ in range(PLACES)]
    late = Cores(1, table=table, cores=2)
    assert (workers[-1].threads, late.threads) == (2, 1), "the table is full"
    late.begin()
    late.end()
    assert Cores(1, table=table.parent / "no/such/folder", cores=2).threads == 1
    (table.parent / "link").symlink_to(table)
    assert Cores(1, table=table.parent / "link", cores=2).threads == 1, "a link may lead to what is another's"
    del workers
    with monkeypatch.context() as other_system:
        other_system.delattr(fcntl, "F_OFD_SETLK")
        alone = Cores(1, table=table, cores=2)
        with alone.computing():
            assert alone.threads == 1, "a system without such locks"
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert Cores(1, table=table, cores=2).threads == 1, "another user's"


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000", 2), ("20000 100000", 1), ("max 100000", 8), ("", 8)])
def test_a_container_has_as_many_cores_as_it_may_keep_busy(tmp_path, monkeypatch, quota, cores):
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(machine, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    assert machine.usable_cores() == cores
