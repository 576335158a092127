"""The watchdog must not keep the driver from ending."""

import os
import signal

from roll.distributed import watchdog


def test_one_that_was_stopped_is_killed_when_it_is_dismissed(monkeypatch):
    monkeypatch.setattr(watchdog, "END_S", 0.2)
    dog = watchdog.Watchdog()
    os.kill(dog._process.pid, signal.SIGSTOP)
    dog.dismiss()
    assert dog._process.returncode == -signal.SIGKILL
