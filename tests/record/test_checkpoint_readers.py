"""A checkpoint that another process reads is not deleted by its run, and one that is being deleted is not begun to be read."""

import os
import subprocess
import sys

import pytest

from roll.core.errors import CheckpointError
from roll.core.record.checkpoint import TRAINER, CheckpointStore
from roll.platform import checkpoint_readers
from roll.platform.checkpoint_readers import deletable, reading
from roll.reports.keep_best import Retention

READER = """
import sys
from pathlib import Path
from roll.platform.checkpoint_readers import reading
held = reading(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path, 1, None, Retention(tmp_path, None).spares)


def save(store, step):
    (store.begin(step) / TRAINER / "weights").write_text("")
    return store.commit(step, {}, [])


def test_what_another_process_reads_stays_until_it_ends_however_it_ends(store):
    folder = save(store, 1)
    reader = subprocess.Popen([sys.executable, "-c", READER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert reader.stdout.readline() == b"held\n"
        save(store, 2)
        save(store, 3)
        assert store.steps() == [1, 3]
    finally:
        reader.kill()
        reader.communicate()
    store.prune()
    assert store.steps() == [3]


def test_readers_do_not_shut_each_other_out_and_the_last_one_counts(store):
    folder = save(store, 1)
    one, other = reading(folder), reading(folder)
    save(store, 2)
    one.close()
    store.prune()
    assert store.steps() == [1, 2]
    del other
    store.prune()
    assert store.steps() == [2]


def test_what_is_being_deleted_is_not_begun_and_what_is_not_there_is_for_others_to_find(store, tmp_path):
    folder = save(store, 1)
    lock, gone = deletable([folder])
    assert gone == {folder}
    with pytest.raises(CheckpointError, match=r"step-1 is being deleted by its run \(max_ckpt_to_keep\)"):
        reading(tmp_path / "step-7", folder)
    lock.close()
    reading(folder, folder / "manifest.json", tmp_path / "nowhere").close()


def test_no_descriptor_is_left_open(store):
    folder, before = save(store, 1), len(os.listdir("/proc/self/fd"))
    reading(folder).close()
    for step in range(2, 6):
        save(store, step)
    deletable([folder])[0].close()
    del store
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_a_file_system_without_locks_keeps_nobody_from_reading_or_deleting(store, monkeypatch):
    def refuse(descriptor, kind):
        raise OSError(checkpoint_readers.NO_LOCKS[0], "no locks")

    folder = save(store, 1)
    monkeypatch.setattr(checkpoint_readers.fcntl, "flock", refuse)
    reading(folder).close()
    save(store, 2)
    assert store.steps() == [2]


def test_one_that_stays_for_another_reason_can_be_read_after_each_deletion(tmp_path):
    retention = Retention(tmp_path, None)
    store = CheckpointStore(tmp_path, 1, None, lambda old: {1, *retention.spares([step for step in old if step != 1])})
    for step in (1, 2, 3):
        save(store, step)
    assert store.steps() == [1, 3]
    reading(tmp_path / "step-1").close()
