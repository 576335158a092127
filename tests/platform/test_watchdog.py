"""The watchdog must not keep the driver from ending."""

import os
import signal

import psutil

from roll.platform import watchdog


def test_one_that_was_stopped_is_killed_when_it_is_dismissed(monkeypatch):
    monkeypatch.setattr(watchdog, "END_S", 0.2)
    dog = watchdog.Watchdog()
    dog.kills([])
    assert dog._process is not None
    os.kill(dog._process.pid, signal.SIGSTOP)
    dog.dismiss()
    assert dog._process.returncode == -signal.SIGKILL


def test_a_run_that_is_refused_before_its_first_order_needs_no_process():
    before = {*psutil.Process().children()}
    dog = watchdog.Watchdog()
    assert {*psutil.Process().children()} <= before
    dog.dismiss()
