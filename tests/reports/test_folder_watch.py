"""A folder whose file system does not answer is told once, and once more when it does."""

import os
import threading
from types import SimpleNamespace

from roll.reports import folder_watch
from roll.reports.folder_watch import FolderWatch


def test_a_folder_that_hangs_is_told_when_it_has_hung_for_long_and_when_it_is_back(monkeypatch, tmp_path):
    lines, now, back = [], [100.0], threading.Event()
    monkeypatch.setattr(folder_watch, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(os, "statvfs", lambda _: back.wait(10))
    watch = FolderWatch(tmp_path, lines.append)

    def looks(at):
        now[0] = at
        watch.look()
        return watch.is_silent

    assert not any(map(looks, (100.0, 105.0, 110.0))) and lines == []
    assert all(map(looks, (110.5, 130.0)))
    assert lines == [f"{tmp_path} has not answered for 10 s: what is written there waits for it"]
    back.set()
    watch._asks.join()
    assert not any(map(looks, (141.0, 142.0)))
    assert lines[1:] == [f"{tmp_path} answers again, after 41 s"]


def test_a_folder_that_is_gone_answers(tmp_path):
    lines = []
    watch = FolderWatch(tmp_path / "none", lines.append)
    watch.look()
    watch._asks.join()
    watch.look()
    assert lines == [] and not watch.is_silent
