"""Rows of files that are tables (CSV, TSV, Parquet, Arrow), and of data sets of the hub.

CSV and TSV say nothing of types, so their values stay the text that they are: an answer `007` or `1.50` is compared as it was
written.
"""

from __future__ import annotations

import csv
import io
import mmap
from collections.abc import Callable, Collection, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from roll.core.data.untrusted import open_regular
from roll.core.errors import boundary
from roll.prompts.hub import asks_modelscope, fetch_data_set, quietly, refusal

Row = dict[str, Any]
_LINES = (".jsonl", ".json", ".ndjson")
"""Endings of files of JSON lines."""

LARGEST_ROW = 16 << 20
"""Bytes of a line, characters of a value: a row may bring its test cases."""
AT_ONCE = 256
"""Rows of a table that are in memory at a time."""


def is_table(path: Path) -> bool:
    return path.suffix.lower() in _READERS


def holds_rows(path: Path) -> bool:
    """True if it is a file of rows by its name, or is a file."""
    return is_table(path) or path.suffix in _LINES or path.is_file()


def told(folder: Path, most: int = 8) -> str:
    """The files of a folder that can hold rows."""
    there = sorted(path.name for path in folder.iterdir() if path.is_file() and (is_table(path) or path.suffix in _LINES))
    more = f" and {len(there) - most} more" if len(there) > most else ""
    return f"; name files of it: {', '.join(there[:most])}{more}" if there else ", and has no file of prompts"


def rows(path: Path, with_bytes: Collection[str] = ()) -> Iterator[Row]:
    """The rows as JSON values; columns of bytes (images) are left out, but for those in `with_bytes`. Raises `OSError`,
    `ValueError`."""
    with open_regular(path) as file:
        for row in _READERS[path.suffix.lower()](file):
            yield _plain(row, with_bytes)


def rows_of_hub(
    path: str, subset: str | None, split: str, revision: str | None, with_bytes: Collection[str] = ()
) -> Iterator[Row]:
    """The rows of a data set, which `datasets` fetches once to its cache, as `rows`; with `USE_MODELSCOPE=1` ModelScope's package
    fetches it. Code of a data set is never run. Raises `ValueError`."""
    from datasets import load_dataset

    with boundary(ValueError, say=lambda error: ": ".join(refusal(error))):
        if asks_modelscope() and not Path(path).exists():
            path, revision = str(fetch_data_set(path, revision)), None
        with quietly():
            found = load_dataset(path, subset, split=split, revision=revision)
    # Pictures and sounds stay bytes.
    yield from (_plain(row, with_bytes) for batch in found.with_format("arrow").iter(AT_ONCE) for row in batch.to_pylist())


def _csv(file: BinaryIO, delimiter: str = ",") -> Iterator[Row]:
    csv.field_size_limit(LARGEST_ROW)  # of the process; Python's own is 128 KiB
    reader = csv.DictReader(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""), strict=True, delimiter=delimiter)
    try:
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(f"line {reader.line_num} has another number of values than the first line has names")
            yield row
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from error


def _parquet(file: BinaryIO) -> Iterator[Row]:
    from pyarrow.parquet import ParquetFile

    for batch in ParquetFile(file).iter_batches(AT_ONCE):
        yield from batch.to_pylist()


def _arrow(file: BinaryIO) -> Iterator[Row]:
    """A file of record batches, or a stream of them, which `datasets` writes. The system pages it in and out: a batch may be as
    large as the file."""
    from pyarrow import ArrowInvalid, BufferReader, ipc, py_buffer

    mapped = py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        reader = ipc.open_file(BufferReader(mapped))
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
    except ArrowInvalid:
        batches = iter(ipc.open_stream(BufferReader(mapped)))
    for batch in batches:
        for start in range(0, batch.num_rows, AT_ONCE):
            yield from batch.slice(start, AT_ONCE).to_pylist()


def _plain(row: Row, with_bytes: Collection[str]) -> Row:
    return {name: _value(value) for name, value in row.items() if name in with_bytes or not _holds_bytes(value)}


def _holds_bytes(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_bytes, value.values()))
    return any(map(_holds_bytes, value)) if isinstance(value, list | tuple) else isinstance(value, bytes)


def _value(value: object) -> object:
    if isinstance(value, dict):
        return {name: _value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):  # a map's entries are pairs
        return [_value(each) for each in value]
    return str(value) if isinstance(value, date | datetime | time | timedelta | Decimal) else value


_TABS = partial(_csv, delimiter="\t")
_READERS: dict[str, Callable[[BinaryIO], Iterator[Row]]] = {".csv": _csv, ".tsv": _TABS, ".parquet": _parquet, ".arrow": _arrow}
