"""A crash of the machine at any moment: of what was written only what was synced is left, and that is a checkpoint or none.

The simulated disk is the most forgetful that POSIX allows: a file has the content of its last fsync (none before the first), and
a folder the entries of its own last fsync.
"""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from roll.core.record.checkpoint import TRAINER, CheckpointStore
from roll.core.record.journal import JournalFile, sync


@dataclass
class Disk:
    """What is on it, by inode: the bytes of a file, or the entries (name -> inode) of a folder."""

    root: Path
    content: dict[int, bytes | dict[str, int]] = field(default_factory=dict)
    syncs: int = 0
    after_sync: Callable[[], None] | None = None

    def fsync(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if stat.S_ISDIR(found.st_mode):
            self.content[found.st_ino] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self.content[found.st_ino] = Path(path).read_bytes()
        self.syncs += 1
        if self.after_sync is not None:
            self.after_sync()

    def crash_into(self, folder: Path) -> Path:
        """The tree that the machine finds when it is up again."""
        self._write(self.root.stat().st_ino, folder)
        return folder

    def _write(self, inode: int, path: Path) -> None:
        content = self.content.get(inode)
        if isinstance(content, dict):
            path.mkdir(parents=True)
            for name, below in content.items():
                self._write(below, path / name)
        else:
            path.write_bytes(content or b"")  # what was never synced is empty; a folder would be, too


@pytest.fixture
def disk(tmp_path, monkeypatch):
    (tmp_path / "root").mkdir()
    disk = Disk(tmp_path / "root")
    monkeypatch.setattr(os, "fsync", disk.fsync)
    return disk


def save(store, step):
    trainer = store.begin(step) / TRAINER
    for name in ("weights", "model/config.json", "model/deep/weights"):
        (trainer / name).parent.mkdir(exist_ok=True)
        (trainer / name).write_text(f"{name} of {step}")
    return store.commit(step, {"step": step}, [{"group": step}])


def test_a_checkpoint_that_was_committed_survives_a_crash_with_all_its_folders(disk, tmp_path):
    save(CheckpointStore(disk.root / "run/checkpoints"), 3)
    left = disk.crash_into(tmp_path / "left")
    found = CheckpointStore(left / "run/checkpoints").resolve(True)
    assert (found.step, found.state, found.buffer) == (3, {"step": 3}, [{"group": 3}])
    assert (found.trainer / "model/deep/weights").read_text() == "model/deep/weights of 3"


def test_a_crash_at_any_moment_leaves_the_old_or_the_new(disk, tmp_path):
    store = CheckpointStore(disk.root / "run/checkpoints", keep=1)
    save(store, 1)
    seen = []

    def crash() -> None:
        left = disk.crash_into(tmp_path / f"left-{disk.syncs}")
        seen.append(CheckpointStore(left / "run/checkpoints").resolve(True).step)

    disk.after_sync = crash
    save(store, 2)
    assert sorted(seen) == seen and set(seen) == {1, 2} and len(seen) > 10


def test_rows_that_a_position_counts_survive_and_so_do_those_that_were_cut(disk, tmp_path):
    (disk.root / "run").mkdir()
    sync(disk.root)
    journal = JournalFile(disk.root / "run/m.jsonl")
    for step in range(4):
        journal.append({"step": step})
    position = journal.position()
    journal.sync()
    left = disk.crash_into(tmp_path / "left")
    assert JournalFile(left / "run/m.jsonl").rewind(position) == 0
    journal.retain(lambda row: row["step"] < 2)
    left = disk.crash_into(tmp_path / "kept")
    assert [row["step"] for row in JournalFile(left / "run/m.jsonl").rows()] == [0, 1]
    assert [row["step"] for row in JournalFile(left / "run/m.rolled-back.jsonl").rows()] == [2, 3]


def test_checkpoints_that_were_set_aside_do_not_come_back(disk, tmp_path):
    store = CheckpointStore(disk.root / "run/checkpoints")
    save(store, 1)
    save(store, 2)
    store.set_aside_after(1)
    assert CheckpointStore(disk.crash_into(tmp_path / "left") / "run/checkpoints").resolve("auto").step == 1
