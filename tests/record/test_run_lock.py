"""One run a folder: the lock of a living process is respected, that of a dead one is gone, and who lost it cannot commit."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from roll.core.errors import Superseded
from roll.core.record.checkpoint import TRAINER, CheckpointStore
from roll.core.record.run_lock import RunInUse, RunLock

HOLD = """
import sys
from pathlib import Path
from roll.core.record.run_lock import RunLock
lock = RunLock(Path(sys.argv[1]))
print(lock.token, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder():
    """`holder(folder)`: a process that holds the lock, and its token."""
    processes = []

    def start(folder):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], **pipes))
        return processes[-1], int(processes[-1].stdout.readline())

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def save(store, step):
    (store.begin(step) / TRAINER / "weights").write_text("weights")
    return store.commit(step, {}, [])


def test_a_living_process_is_named_and_a_killed_one_has_no_lock(tmp_path, holder):
    process, token = holder(tmp_path / "run")
    with pytest.raises(RunInUse, match=rf"run is in use by process {process.pid} on {socket.gethostname()}, since 20\d\d-"):
        RunLock(tmp_path / "run")
    RunLock(tmp_path / "other").close()
    process.send_signal(signal.SIGKILL)
    process.wait()
    lock = RunLock(tmp_path / "run")
    assert lock.token > token
    lock.close()


def test_the_lock_stays_when_the_folder_is_moved_aside(tmp_path, holder):
    (tmp_path / "run").mkdir()
    holder(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "run.1")
    (tmp_path / "run").mkdir()
    with pytest.raises(RunInUse):
        RunLock(tmp_path / "run")


def test_a_folder_is_locked_under_all_its_names(tmp_path, holder):
    (tmp_path / "real").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "real")
    (tmp_path / "again").symlink_to(tmp_path)
    holder(tmp_path / "run")
    for name in ("real", "run", "again/run"):
        with pytest.raises(RunInUse):
            RunLock(tmp_path / name)


def test_who_lost_the_lock_cannot_commit(tmp_path, holder):
    """As on a network file system that forgot the lock: the process lives, but another one took over."""
    root = tmp_path / "run/checkpoints"
    lock = RunLock(tmp_path / "run")
    store = CheckpointStore(root, lock=lock)
    save(store, 1)
    partial = store.begin(2)
    (partial / TRAINER / "weights").write_text("weights")
    (tmp_path / ".run.lock").unlink()
    process, token = holder(tmp_path / "run")
    assert token > lock.token
    with pytest.raises(Superseded, match=f"taken over by process {process.pid} on"):
        store.commit(2, {}, [])
    assert store.steps() == [1]
    with pytest.raises(Superseded):
        store.begin(3)
    lock.close()


def test_tokens_in_manifests_fence_where_nothing_else_is_left(tmp_path):
    root = tmp_path / "run/checkpoints"
    old = RunLock(tmp_path / "run")
    partial = CheckpointStore(root, lock=old).begin(2)
    (partial / TRAINER / "weights").write_text("weights")
    new = RunLock(tmp_path / "run")  # a process gets its own lock twice: this stands for one that was lost
    path = save(CheckpointStore(root, lock=new), 1)
    assert json.loads((path / "manifest.json").read_text())["token"] == new.token > old.token
    (tmp_path / ".run.owner.json").unlink()
    assert not partial.exists(), "what an earlier run left half-written is removed"
    partial.mkdir()
    with pytest.raises(Superseded, match="step-1 was written by a later run"):
        CheckpointStore(root, lock=old).commit(2, {}, [])
    assert CheckpointStore(root).steps() == [1]


@pytest.mark.parametrize("text", ["", "[]", '{"token": "x"}', '{"token": 1}', "\x00"])
def test_an_owner_file_of_any_shape_is_no_obstacle(tmp_path, text, holder):
    (tmp_path / ".run.owner.json").write_text(text)
    process, _ = holder(tmp_path / "run")
    (tmp_path / ".run.owner.json").write_text(text)
    with pytest.raises(RunInUse, match="in use by another process"):
        RunLock(tmp_path / "run")
    process.kill()
    process.wait()
    RunLock(tmp_path / "run").close()


def test_a_file_system_without_locks_is_said_to_be_one_and_tokens_still_fence(tmp_path, monkeypatch, caplog):
    def lockf(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "lockf", lockf)
    first = RunLock(tmp_path / "run")
    assert "has no file locks (Function not implemented): make sure that no second run writes to" in caplog.text
    second = RunLock(tmp_path / "run")
    with pytest.raises(Superseded):
        first.check()
    second.check()
    first.close()
    second.close()


def test_a_child_that_ends_does_not_take_the_lock_with_it(tmp_path):
    lock = RunLock(tmp_path / "run")
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    code = f"from pathlib import Path; from roll.core.record.run_lock import RunLock; RunLock(Path({str(tmp_path / 'run')!r}))"
    second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert second.returncode == 1 and "RunInUse" in second.stderr
    lock.close()


def test_a_run_that_was_refused_leaves_nothing(tmp_path):
    """As an explorer of another experiment: folders that were there stay, and so does what others have put into new ones."""
    run = tmp_path / "there" / "proj" / "second" / "explorers" / "other"
    (tmp_path / "there").mkdir()
    RunLock(run).close()
    assert list((tmp_path / "there").iterdir()) == []
    lock = RunLock(run)
    (run.parents[1] / "run.json").touch()
    lock.close()
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == ["there/proj/second/run.json"]


def test_the_lock_of_a_run_that_began_stays_and_a_refused_second_one_takes_nothing_away(tmp_path, holder):
    process, _ = holder(tmp_path / "run")
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(RunInUse):
        RunLock(tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == before and ".run.lock" in before
    process.kill()
    process.wait()
    lock = RunLock(tmp_path / "run")
    (tmp_path / "run").mkdir()
    lock.close()
    assert (tmp_path / ".run.lock").exists() and (tmp_path / ".run.owner.json").exists()


def test_a_lock_on_a_file_that_was_just_removed_is_none(tmp_path, monkeypatch):
    """Its holder, refused, removes it between our opening it and our locking it."""
    lock = fcntl.lockf

    def removed_before(descriptor, operation):
        (tmp_path / ".run.lock").unlink()
        return lock(descriptor, operation)

    monkeypatch.setattr("roll.core.record.run_lock.fcntl.lockf", removed_before)
    with pytest.raises(RunInUse, match="which is just ending"):
        RunLock(tmp_path / "run")
