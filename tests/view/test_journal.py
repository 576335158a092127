"""Every row of a journal is taken once, whatever becomes of the file meanwhile."""

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_files import lines

from roll.view import journal
from roll.view.journal import Journal


class Rows(Journal):
    def __init__(self, folder):
        super().__init__(folder, "rows.jsonl")
        self.rows, self.places = [], []

    def take(self, row, place):
        self.rows.append(row)
        self.places.append(place)

    def forget(self):
        self.rows, self.places = [], []


def numbers(rows):
    return [row["n"] for row in rows.rows]


@given(pieces=st.lists(st.integers(1, 12), max_size=12))
def test_rows_that_come_in_pieces_are_taken_once_each(pieces):
    with tempfile.TemporaryDirectory() as folder:
        text = "".join(json.dumps({"n": i, "t": "é" * i}) + "\n" for i in range(6)).encode()
        rows, path = Rows(Path(folder)), Path(folder) / "rows.jsonl"
        for size in [*pieces, len(text)]:
            with path.open("ab") as file:
                file.write(text[:size])
            text = text[size:]
            rows.look()
            whole = path.read_bytes().count(b"\n")
            assert numbers(rows) == list(range(whole))
        assert [rows.row_at(place) for place in rows.places] == rows.rows


def test_a_file_that_was_cut_replaced_or_removed_is_taken_anew(tmp_path):
    rows, path = Rows(tmp_path), tmp_path / "rows.jsonl"
    assert not rows.look()
    lines(path, [{"n": i} for i in range(5)])
    assert rows.look() and not rows.look()
    os.truncate(path, 2 * len('{"n": 0}\n'))
    lines(path, [{"n": 9}])
    assert rows.look() and numbers(rows) == [0, 1, 9]
    # Rolled back and grown beyond where it had been: only its contents tell.
    os.truncate(path, len('{"n": 0}\n'))
    lines(path, [{"n": n} for n in (7, 8, 7, 8)])
    assert rows.look() and numbers(rows) == [0, 7, 8, 7, 8]
    lines(tmp_path / "new", [{"n": 4}])
    os.replace(tmp_path / "new", path)
    assert rows.look() and numbers(rows) == [4]
    path.unlink()
    assert rows.look() and numbers(rows) == [] and not rows.look()


def test_lines_that_are_no_rows_are_counted_and_huge_ones_never_held(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "LONGEST_LINE", 64)
    (tmp_path / "rows.jsonl").write_bytes(
        b'{"n": 1}\n[1]\nnothing\n\xff\xfe\n{"n": 2, "t": "' + b"x" * 500 + b'"}\n' + b"[" * 60 + b'\n{"n": 3}\n'
    )
    rows = Rows(tmp_path)
    rows.look()
    assert numbers(rows) == [1, 3] and rows.damaged == 5


def test_a_link_and_a_pipe_are_not_read(tmp_path):
    secret = lines(tmp_path / "secret", [{"n": 1}])
    inside = tmp_path / "run"
    inside.mkdir()
    (inside / "rows.jsonl").symlink_to(secret)
    with pytest.raises(ValueError, match="is a link"):
        Rows(inside).look()
    (inside / "rows.jsonl").unlink()
    os.mkfifo(inside / "rows.jsonl")
    with pytest.raises(ValueError, match="FIFO"):
        Rows(inside).look()


def test_a_row_that_is_no_longer_there_is_an_error_not_another_row(tmp_path):
    path, rows = lines(tmp_path / "rows.jsonl", [{"n": 1}, {"n": 2}]), Rows(tmp_path)
    rows.look()
    path.write_text("short\n")
    with pytest.raises(ValueError, match="was rewritten"):
        rows.row_at(rows.places[1])
