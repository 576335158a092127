"""Journals hold whole lines after any crash, and go back to a checkpoint without losing a row."""

import hashlib
import json
import math
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.core.record.journal import JournalFile, RotatedJournal, journal_parts, part_before, read_rows


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_are_strict_json(tmp_path):
    journal = JournalFile(tmp_path / "deep" / "m.jsonl")
    journal.append({"loss": torch.tensor(0.5), "nan": math.nan, "inf": [-math.inf], "histogram": {0: 3}, "text": "é\n\u2028"})
    expected = {"loss": 0.5, "nan": None, "inf": [None], "histogram": {"0": 3}, "text": "é\n\u2028"}
    assert list(journal.rows()) == [expected]  # and readable while the journal is open


@pytest.mark.parametrize("left", ["", '{"i": 0', '{"i": 0}\n{"i": 1}\n{"i": 2, "te', '{"i": 0}\n' + "x" * 200_000])
def test_a_half_written_last_line_is_removed_on_opening(tmp_path, left):
    path = tmp_path / "m.jsonl"
    path.write_text(left)
    whole = left.count("\n")
    assert len(list(read_rows(path))) == whole
    journal = JournalFile(path)
    journal.append({"i": "next"})
    assert [row["i"] for row in rows(path)] == [*range(whole), "next"]


def test_a_broken_line_is_named(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"i": 0}\nnonsense\n')
    with pytest.raises(ValueError, match=r"m\.jsonl, line 2"):
        list(read_rows(path))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 12), st.integers(0, 12), st.binary(max_size=30).filter(lambda b: b"\n" not in b))
def test_rewind_goes_back_to_the_position_and_keeps_what_it_cuts(before, after, torn):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "groups.jsonl"
        journal = JournalFile(path)
        for i in range(before):
            journal.append({"i": i})
        position = journal.position()
        for i in range(after):
            journal.append({"i": before + i})
        journal.close()
        with path.open("ab") as file:
            file.write(torn)
        journal = JournalFile(path)
        assert journal.rewind(position) == after
        journal.append({"i": "again"})
        assert [row["i"] for row in rows(path)] == [*range(before), "again"]
        cut = rows(journal.rolled_back) if after else []
        assert [row["i"] for row in cut] == list(range(before, before + after))
        journal.close()


def test_a_position_that_the_file_never_had_is_refused(tmp_path):
    journal = JournalFile(tmp_path / "m.jsonl")
    journal.append({"i": 0})
    with pytest.raises(ValueError, match="rows were lost"):
        journal.rewind(100)
    with pytest.raises(ValueError, match="no line border"):
        journal.rewind(3)
    assert len(rows(journal.path)) == 1


@pytest.mark.parametrize(
    "damage",
    [lambda rows: rows[1:], lambda rows: [*rows[:2], *rows[3:]], lambda rows: [rows[1], rows[0], *rows[2:]]],
    ids=["front", "middle", "order"],
)
def test_rows_that_were_lost_before_the_position_are_noticed_whatever_came_after(tmp_path, damage):
    journal = JournalFile(tmp_path / "m.jsonl")
    for i in range(4):
        journal.append({"i": i})
    position, digest = journal.position(), journal.digest()
    for i in range(4, 40):
        journal.append({"i": i})
    journal.close()
    kept = journal.path.read_bytes()
    journal.path.write_bytes(b"".join(damage(kept.splitlines(keepends=True))))
    with pytest.raises(ValueError, match=r"m\.jsonl: rows before the checkpoint \(byte 36\) were changed or lost"):
        JournalFile(journal.path).rewind(position, digest)
    journal.path.write_bytes(kept)
    assert JournalFile(journal.path).rewind(position, digest) == 36


def test_the_digest_is_that_of_the_file_after_anything(tmp_path):
    journal = JournalFile(tmp_path / "m.jsonl")

    def check() -> None:
        assert journal.digest() == hashlib.blake2b(journal.path.read_bytes(), digest_size=32).hexdigest()

    check()
    for i in range(8):
        journal.append({"i": i})
        check()
    position, digest = journal.position(), journal.digest()
    journal.append({"i": 8})
    journal.rewind(position, digest)
    assert journal.digest() == digest
    journal.retain(lambda row: row["i"] % 2 == 0)
    check()
    journal.append({"i": 9})
    check()
    journal.close()
    journal = JournalFile(journal.path)
    journal.append({"i": 10})
    check()


def test_keep_removes_rows_wherever_they_stand(tmp_path):
    journal = JournalFile(tmp_path / "m.jsonl")
    for step in (0, 1, 3, 2, 1):
        journal.append({"step": step})
    assert journal.retain(lambda row: row["step"] <= 1) == 2
    journal.append({"step": 9})
    assert [row["step"] for row in rows(journal.path)] == [0, 1, 1, 9]
    assert [row["step"] for row in rows(journal.rolled_back)] == [3, 2]


def test_a_second_writer_is_noticed_before_anything_is_written(tmp_path):
    """As after a lock that was lost: the one who was away must not write among the other's rows."""
    mine, other = JournalFile(tmp_path / "m.jsonl"), JournalFile(tmp_path / "m.jsonl")
    other.append({"i": 0})
    with pytest.raises(RuntimeError, match="another process writes to it"):
        mine.append({"i": 1})
    assert rows(tmp_path / "m.jsonl") == [{"i": 0}]


def test_a_full_disk_is_one_error_and_leaves_whole_lines(tmp_path):
    """The limit on a file's size stands for the disk: a line is written in part, then the kernel says no."""
    code = (
        "import resource, sys, pathlib; from roll.core.record.journal import JournalFile\n"
        f"journal = JournalFile(pathlib.Path({str(tmp_path / 'm.jsonl')!r}))\n"
        "journal.append({'i': 0})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "for i in range(3):\n"
        "    try: journal.append({'i': i, 'pad': 'x' * 5000})\n"
        "    except OSError as error: print(error)\n"
        "journal.append({'i': 1})\n"
        "journal.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"File too large: '{tmp_path / 'm.jsonl'}'") == 3
    assert rows(tmp_path / "m.jsonl") == [{"i": 0}, {"i": 1}]


def test_every_row_that_was_appended_survives_sigkill(tmp_path):
    code = (
        "import sys, pathlib; from roll.core.record.journal import JournalFile\n"
        f"journal = JournalFile(pathlib.Path({str(tmp_path / 'm.jsonl')!r}))\n"
        "i = 0\n"
        "while True:\n"
        "    journal.append({'i': i, 'pad': 'x' * 5000}); print(i, flush=True); i += 1\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    acknowledged = [int(process.stdout.readline()) for _ in range(50)][-1]
    process.send_signal(signal.SIGKILL)
    acknowledged = max(
        [acknowledged, *(int(line) for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n"))]
    )
    process.wait()
    found = [row["i"] for row in JournalFile(tmp_path / "m.jsonl").rows()]
    assert found == list(range(len(found))) and len(found) > acknowledged


ROW = 22
"""Bytes of a row."""


def numbered(*numbers):
    return [{"n": n, "t": "x" * (5 - len(str(n)))} for n in numbers]


def written(path):
    return [json.loads(line)["n"] for part in journal_parts(path) for line in part.path.read_text().splitlines()]


def set_aside(folder):
    texts = [path.read_text() for path in sorted(folder.glob("*.rolled-back.jsonl"))]
    return [json.loads(line)["n"] for text in texts for line in text.splitlines()]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 4), st.booleans())
def test_it_goes_back_to_any_position_and_keeps_what_it_cuts(before, after, per_part, reopened):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.jsonl"
        journal = RotatedJournal(path, 0, part_bytes=per_part * ROW)
        for n in range(before):
            journal.append(numbered(n))
        position, digest = journal.position(), journal.digest()
        for n in range(before, before + after):
            journal.append(numbered(n))
        assert position == before * ROW and len(journal_parts(path)) == max(1, -(-(before + after) // per_part))
        if reopened:
            journal.close()
            journal = RotatedJournal(path, 0, part_bytes=per_part * ROW)
        assert journal.rewind(position, digest) == after
        assert sorted(set_aside(Path(folder))) == list(range(before, before + after))
        journal.append(numbered(99))
        assert written(path) == [*range(before), 99] and journal.position() == position + ROW
        journal.close()


def test_a_step_without_rows_begins_no_file(tmp_path):
    """A checkpoint's digest would be that of the empty file, and its position one of the file before."""
    journal = RotatedJournal(tmp_path / "samples.jsonl", 0, part_bytes=ROW)
    journal.append(numbered(1))
    journal.append([])
    position, digest = journal.position(), journal.digest()
    journal.append(numbered(2))
    assert len(journal_parts(tmp_path / "samples.jsonl")) == 2
    assert journal.rewind(position, digest) == 1 and written(tmp_path / "samples.jsonl") == [1]
    journal.close()


def test_the_oldest_files_go_and_rows_of_one_group_stay_together(tmp_path):
    path = tmp_path / "samples.jsonl"
    journal = RotatedJournal(path, 12 * ROW)
    for n in range(0, 100, 2):
        journal.append(numbered(n, n + 1))
        assert sum(part.path.stat().st_size for part in journal_parts(path)) <= 12 * ROW + 2 * ROW
        assert written(path)[-1] == n + 1
    kept = written(path)
    assert kept == list(range(kept[0], 100)) and 8 <= len(kept) <= 14
    assert all(json.loads(part.path.read_text().splitlines()[0])["n"] % 2 == 0 for part in journal_parts(path))


def test_a_position_whose_file_has_gone_is_gone_back_to(tmp_path):
    path = tmp_path / "samples.jsonl"
    journal = RotatedJournal(path, 8 * ROW)
    journal.append(numbered(0))
    position, digest = journal.position(), journal.digest()
    for n in range(1, 40):
        journal.append(numbered(n))
    left = written(path)
    assert part_before(path, position) is None
    assert journal.rewind(position, digest) == len(left) and set_aside(tmp_path) == left
    journal.append(numbered(77))
    assert written(path) == [77] and journal.position() == position + ROW


def test_a_file_whose_rows_before_the_position_were_changed_or_lost_is_put_aside(tmp_path, caplog):
    path = tmp_path / "samples.jsonl"
    journal = RotatedJournal(path, 0, part_bytes=2 * ROW)
    for n in range(5):
        journal.append(numbered(n))
    position, digest = journal.position(), journal.digest()
    journal.append(numbered(5))
    journal.close()
    last = journal_parts(path)[-1].path
    last.write_text(last.read_text().replace("4", "9"))
    damaged = last.read_bytes()
    again = RotatedJournal(path, 0)
    again.rewind(position, digest)
    assert "were changed or lost" in caplog.text
    assert last.with_stem(f"{last.stem}.rolled-back").read_bytes() == damaged
    again.append(numbered(6))
    assert written(path) == [0, 1, 2, 3, 6] and again.position() == position + ROW
    again.close()
    for part in journal_parts(path):
        part.path.unlink()
    again = RotatedJournal(path, 0)
    again.rewind(position, digest)
    assert again.position() == position


def test_a_disk_that_is_full_when_a_file_begins_leaves_whole_rows_and_a_journal_to_go_on_with(tmp_path):
    path = tmp_path / "samples.jsonl"
    code = (
        "import resource, sys, pathlib; from roll.core.record.journal import RotatedJournal\n"
        f"journal = RotatedJournal(pathlib.Path({str(path)!r}), 0, part_bytes=390)\n"
        "for n in range(4): journal.append([{'n': n, 't': 'x' * 80}])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))\n"
        "try: journal.append([{'n': 4, 't': 'x' * 80}])\n"
        "except OSError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "File too large" in done.stdout and "samples-0" in done.stdout, done.stderr
    assert [part.path.stat().st_size for part in journal_parts(path)][1:] == [0]
    journal = RotatedJournal(path, 0, part_bytes=390)
    position, digest = journal.position(), journal.digest()
    journal.append(numbered(4))
    assert written(path) == [0, 1, 2, 3, 4] and journal.rewind(position, digest) == 1
