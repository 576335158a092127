"""A journal in a folder that hangs: rows wait in their order, nobody else does, and what fails meanwhile is told once."""

import errno
import hashlib
import json
import threading
import time

import pytest

from roll.core.record import patient_file
from roll.core.record.journal import JournalFile
from roll.core.record.patient_file import PatientFile


@pytest.fixture
def disk(monkeypatch):
    """A folder that hangs from `hangs.clear()` on until `hangs.set()`, and then fails as `disk.error` says."""

    class Disk:
        answers = threading.Event()
        error = None

    write = PatientFile._write

    def slowly(file, line):
        assert Disk.answers.wait(30)
        return Disk.error if Disk.error is not None else write(file, line)

    Disk.answers.set()
    monkeypatch.setattr(PatientFile, "_write", slowly)
    yield Disk
    Disk.answers.set()


def rows(path):
    return [json.loads(line)["i"] for line in path.read_text().splitlines()]


def digest(path):
    return hashlib.blake2b(path.read_bytes(), digest_size=32).hexdigest()


def test_rows_wait_for_the_folder_and_whoever_appends_does_not(tmp_path, disk):
    journal = JournalFile(tmp_path / "m.jsonl")
    journal.append({"i": 0})
    assert rows(journal.path) == [0] and journal.digest() == digest(journal.path)
    disk.answers.clear()
    began = time.monotonic()
    for i in range(1, 200):
        journal.append({"i": i})
    assert time.monotonic() - began < 10 * patient_file.MOMENT_S, "it has waited for each row"
    assert rows(journal.path) == [0]
    position, told = journal.position(), journal.digest()
    settled = threading.Thread(target=journal.sync)
    settled.start()
    settled.join(0.2)
    assert settled.is_alive(), "a checkpoint would name rows that are not there"
    disk.answers.set()
    settled.join(10)
    assert rows(journal.path) == list(range(200))
    assert (position, told) == (journal.path.stat().st_size, digest(journal.path))
    journal.append({"i": 200})
    assert rows(journal.path)[-1] == 200, "as soon as the folder answers, a row is there when it was appended"
    journal.close()


@pytest.mark.parametrize("ask", [JournalFile.sync, JournalFile.close, JournalFile.rewind, JournalFile.rows])
def test_whoever_needs_the_rows_waits_for_them(tmp_path, disk, ask):
    journal = JournalFile(tmp_path / "m.jsonl")
    disk.answers.clear()
    journal.append({"i": 0})
    threading.Timer(0.3, disk.answers.set).start()
    ask(journal, *([journal.position()] if ask is JournalFile.rewind else []))
    assert rows(journal.path) == [0]


def goes_on(journal):
    for _ in range(1_000_000):
        journal.append({"i": 3})


@pytest.mark.parametrize("tell", [JournalFile.sync, goes_on])
def test_a_late_row_that_cannot_be_written_is_told_to_the_next_who_asks(tmp_path, disk, tell):
    journal = JournalFile(tmp_path / "m.jsonl")
    journal.append({"i": 0})
    journal.digest()
    disk.answers.clear()
    for i in (1, 2):
        journal.append({"i": i})
    disk.error = OSError(errno.ENOSPC, "No space left on device", str(journal.path))
    disk.answers.set()
    with pytest.raises(OSError, match=r"No space left on device: .*m\.jsonl"):
        tell(journal)
    disk.error = None
    journal.append({"i": 4})
    assert rows(journal.path) == [0, 4], "no row without those before it"
    assert (journal.position(), journal.digest()) == (journal.path.stat().st_size, digest(journal.path))
    journal.close()


def test_no_more_waits_than_there_is_room_for(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(patient_file, "MOST_BYTES", 100)
    journal = JournalFile(tmp_path / "m.jsonl")
    disk.answers.clear()
    appended = threading.Thread(target=lambda: [journal.append({"i": i}) for i in range(100)])
    appended.start()
    appended.join(2 * patient_file.MOMENT_S + 0.5)
    assert appended.is_alive() and journal.position() < 120
    disk.answers.set()
    appended.join(10)
    journal.close()  # the last rows are still on their way
    assert rows(journal.path) == list(range(100))


def test_a_thread_that_has_nothing_to_write_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(patient_file, "IDLE_S", 0.05)
    journal = JournalFile(tmp_path / "m.jsonl")
    for i in range(2):
        journal.append({"i": i})
        thread = journal._file._thread
        assert thread is not None
        thread.join(10)
        assert not thread.is_alive()
    assert rows(journal.path) == [0, 1]
