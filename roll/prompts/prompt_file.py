"""Prompt files: JSON Lines, one prompt per line, or tables (CSV, TSV, Parquet, Arrow), one per row; columns may have any names.

Rows are read one after the other and none is kept, so a file may be larger than memory. Invariant: every row is complete and well
typed, and its identity is unique among all files read together. The first row that is not well typed ends the reading with one
error that names file, line and what is wrong; an identity that comes twice ends it behind the last row of its file. Only regular
files are read, and no row may be longer, or nested deeper, than any that a run can use.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from glob import glob
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from roll.core.configs.arguments import DataArguments
from roll.core.data.untrusted import complaint, lines, open_regular
from roll.core.errors import PromptFileError
from roll.prompts import tables
from roll.prompts.image_folder import ImageFolder
from roll.prompts.image_reader import ImageReader, StoredImage
from roll.prompts.messages import read_messages, texts_of
from roll.prompts.row_images import RowImages
from roll.prompts.row_values import answer_as_text, kind, names, text_of
from roll.prompts.stored_rows import Identities, digest

T = TypeVar("T")
EVERY_S = 10.0
"""Time between two lines about a long reading."""
A_ROW_A_LINE = "one object a line, as `jq -c '.[]' FILE` makes them of a list"
_ITS_TAG = "say which column it is, e.g. data_args: {tag: source}, or data_args.default_tag for all rows"
_ITS_ANSWER = "say which column it is, e.g. data_args: {ground_truth: answer}"
MOST_LISTED = 5
"""Files that a pattern would mean."""
LONGEST_PROMPT = 4 << 20
"""Characters of a prompt, and of all messages of a row together: no context window holds more, tokenizing more takes minutes."""


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One row under canonical names. At least one of `prompt` and `messages` is there."""

    id: str
    tag: str
    ground_truth: str
    prompt: str | None
    messages: list[dict[str, Any]] | None
    where: str
    """ "file:line", or "file:row", for errors."""
    extra: dict[str, Any] = field(default_factory=dict)
    """The other columns (difficulty, test cases, ...)."""
    images: tuple[StoredImage, ...] = ()
    """Images in the order of their marks in `messages`."""


def read_rows(
    data: DataArguments, key: str = "data_args", only_tag: str | None = None, images: Path | None = None
) -> Iterator[PromptRow]:
    """All rows, in the order of files and lines. Blank lines are skipped. `key`: the configuration's name for `data`. `images`:
    the folder that images are stored in; None: they are checked alone.

    A row without an id column is called "file:line", one with an id that an earlier file has "file:id". A row without a tag
    column has `data.default_tag`, else `only_tag`, and is refused if both are None. Raises `PromptFileError`."""
    only_tag = data.default_tag if data.default_tag is not None else only_tag
    seen, found = Identities(), False
    reader = None if data.images is None else ImageReader(data.images, ImageFolder(images) if images else None)
    for source in _sources(data):
        for row in _identified(source, data, key, only_tag, seen, reader):
            found = True
            yield row
        if twice := seen.end_file():
            _check_twice(data, key, only_tag, twice)
    if not found:
        raise PromptFileError(f"{key}: no prompts in {data.path or ', '.join(data.files) or 'an empty list of files'}")


def _sources(data: DataArguments) -> list[_File | _DataSet]:
    return [_File(Path(path)) for path in data.files] if data.path is None else [_DataSet(data.path, data)]


def _identified(
    source: _File | _DataSet,
    data: DataArguments,
    key: str,
    only_tag: str | None,
    seen: Identities,
    reader: ImageReader | None,
) -> Iterator[PromptRow]:
    for row in _rows(source, data, key, only_tag, reader):
        if seen.in_earlier_file(row.id):  # files number their rows each for itself
            row = replace(row, id=f"{source.name}:{row.id}")
        seen.add(row.id)
        yield row


def _check_twice(data: DataArguments, key: str, only_tag: str | None, twice: set[int]) -> None:
    """Reads once more, for where the same id stands twice. `twice`: digests of ids; those of two ids may be the same. Raises
    `PromptFileError`."""
    seen, where = Identities(), dict[str, str]()
    reader = None if data.images is None else ImageReader(data.images, None)
    for source in _sources(data):
        for row in _identified(source, data, key, only_tag, seen, reader):
            if row.id in where:
                raise PromptFileError(f"{row.where}: {data.id} {row.id!r} is that of {where[row.id]} too")
            if digest(row.id) in twice:
                where[row.id] = row.where
        seen.end_file()


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    key: ClassVar[str] = "file_name"

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def folder(self) -> Path | None:
        """The folder in which its rows' paths begin."""
        return self.path.parent

    def contents(self, with_bytes: Collection[str] = ()) -> Iterator[dict[str, object] | None]:
        """`with_bytes`: columns that may hold bytes. Raises `OSError`, `ValueError`."""
        if self.path.is_dir():
            raise ValueError(f"it is a folder{tables.told(self.path)}")
        return tables.rows(self.path, with_bytes) if tables.is_table(self.path) else _lines(self.path)


@dataclass(frozen=True, slots=True)
class _DataSet:
    name: str
    data: DataArguments
    key: ClassVar[str] = "path"

    def __str__(self) -> str:
        return ":".join(filter(None, (self.name, self.data.subset_name, self.data.split)))

    @property
    def folder(self) -> Path | None:
        path = Path(self.name)
        return path if path.is_dir() else None

    def contents(self, with_bytes: Collection[str] = ()) -> Iterator[dict[str, object] | None]:
        return tables.rows_of_hub(self.name, self.data.subset_name, self.data.split, self.data.revision, with_bytes)


def contents(data: DataArguments, key: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Yields each row's place, and its content. Raises `PromptFileError`."""
    for source in _sources(data):
        for number, content in _numbered(source, key):
            yield f"{source}:{number}", content


def _rows(
    source: _File | _DataSet, data: DataArguments, key: str, only_tag: str | None, reader: ImageReader | None
) -> Iterator[PromptRow]:
    with_bytes = () if reader is None else (reader.args.column, data.messages)
    for number, content in _numbered(source, f"{key}.{source.key}", with_bytes):
        where = f"{source}:{number}"
        images = RowImages(content, reader, source.folder, where)
        yield _row(content, data, where, f"{source.name}:{number}", only_tag, images)


def _numbered(source: _File | _DataSet, key: str, with_bytes: Collection[str] = ()) -> Iterator[tuple[int, dict[str, object]]]:
    try:
        for number, content in enumerate(source.contents(with_bytes), start=1):
            if content is not None:
                yield number, _checked(content, f"{source}:{number}")
    except ModuleNotFoundError as error:
        raise PromptFileError(f"{key}: {source} needs {error.name}, which is not installed: pip install 'roll[data]'") from error
    except OSError as error:
        listed, fix = "", ""
        if isinstance(error, FileNotFoundError) and any(sign in str(source) for sign in "*?["):
            listed = "; no pattern is read here"
            fix = f"a list of files: [{', '.join(sorted(glob(str(source)))[:MOST_LISTED]) or 'a.jsonl, b.jsonl'}]"
        raise PromptFileError(f"{key}: cannot read {source}: {error.strerror or error}{listed}", fix) from error
    except PromptFileError:
        raise
    except ValueError as error:  # the path is not a regular file, or not what its name says
        raise PromptFileError(f"{key}: cannot read {source}: {' '.join(str(error).split())}") from error


def _lines(path: Path) -> Iterator[dict[str, object] | None]:
    """Yields each line's content; None for a blank one."""
    with open_regular(path) as file:
        for number, line in enumerate(lines(file, tables.LARGEST_ROW), start=1):
            where = f"{path}:{number}"
            if line is None:
                raise PromptFileError(f"{where}: the row has more than {tables.LARGEST_ROW:,} bytes")
            if not line.strip():
                yield None
                continue
            if number == 1 and line.startswith(b"\x1f\x8b"):
                raise PromptFileError(f"{where}: the file is compressed", f"gunzip {path}")
            if number == 1 and line.strip(b"\xef\xbb\xbf \t") == b"[":
                raise PromptFileError(f"{where}: a list over several lines, not a JSON object", A_ROW_A_LINE)
            content = _json(line, where, "")
            if not isinstance(content, dict):
                raise PromptFileError(f"{where}: a {kind(content)}, not a JSON object", A_ROW_A_LINE)
            yield content


def _checked(content: dict[str, object], where: str) -> dict[str, object]:
    for column, value in content.items():
        for what, text in (("the name of column", column), ("column", value)):
            if wrong := complaint(text):
                raise PromptFileError(f"{where}: {what} {column!r} {wrong}")
    return content


def _json(text: bytes | str, where: str, what: str) -> object:
    """`what`: the column that holds the text, empty for the whole row."""
    name = f"{what} is " if what else ""
    try:
        return json.loads(text)
    except ValueError as error:
        raise PromptFileError(f"{where}: {name}not valid JSON: {error}") from error
    except RecursionError:
        raise PromptFileError(f"{where}: {name}nested too deep") from None


def _with_nested(content: dict[str, object], names: Iterable[str]) -> dict[str, object]:
    """`reward_model.ground_truth`, where no column has that name, is an entry of the column `reward_model`, as verl's files have
    it."""
    found = dict(content)
    for name in names:
        value: object = content
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            found.setdefault(name, value)
    return found


def _row(
    content: dict[str, object], columns: DataArguments, where: str, default_id: str, only_tag: str | None, images: RowImages
) -> PromptRow:
    used = {columns.id, columns.tag, columns.ground_truth, columns.prompt, columns.messages}
    if nested := [name for name in used if "." in name]:
        content = _with_nested(content, nested)
    prompt = content.get(columns.prompt) if columns.prompt != columns.messages else None
    if prompt is not None and not isinstance(prompt, str):
        fix = f"data_args: {{messages: {columns.prompt}}}" if isinstance(prompt, list) else ""
        raise PromptFileError(f"{where}: {columns.prompt} is a {kind(prompt)}, not text", fix)
    messages = _messages(content.get(columns.messages), columns.messages, where, columns.continue_final_message, images)
    messages = images.of_prompt(prompt) if messages is None else messages
    if columns.system_prompt is not None:
        messages = _led_by(columns.system_prompt, messages, prompt)
    _check_length(prompt, messages, columns, where)
    if prompt is None and messages is None:
        message = f"{where}: neither {columns.prompt!r} nor {columns.messages!r} is there; it has {names(content)}"
        joined = len(content) == 1 and any(sign in name for name in content for sign in ";\t|")
        column = "say which column it is, e.g. data_args: {prompt: question}"
        raise PromptFileError(message, "commas between the columns of a .csv, tabs of a .tsv" if joined else column)
    identity = text_of(content, columns.id, where) if columns.id in content else default_id
    if wrong := complaint(identity):  # the file's name is not UTF-8
        raise PromptFileError(f"{where}: {columns.id} {identity!r} {wrong}")
    shown = images.stored()
    extra = {name: value for name, value in content.items() if name not in used} | images.named(shown)
    return PromptRow(
        id=identity,
        tag=only_tag if only_tag is not None and columns.tag not in content else text_of(content, columns.tag, where, _ITS_TAG),
        ground_truth=text_of(content, columns.ground_truth, where, _ITS_ANSWER, answer_as_text),
        prompt=prompt,
        messages=messages,
        where=where,
        extra=extra,
        images=shown,
    )


def _check_length(prompt: str | None, messages: list[dict[str, Any]] | None, columns: DataArguments, where: str) -> None:
    texts = (text for each in messages or [] for text in texts_of(each["content"]))
    for column, length in ((columns.prompt, len(prompt or "")), (columns.messages, sum(map(len, texts)))):
        if length > LONGEST_PROMPT:
            raise PromptFileError(f"{where}: {column} has {length:,} characters, more than {LONGEST_PROMPT:,}")


def _messages(value: object, column: str, where: str, begun: bool, images: RowImages) -> list[dict[str, Any]] | None:
    listed, place = as_list(value, column, where), f"{where}: {column}"
    return None if listed is None else read_messages(images.messages(listed, place), place, begun)


def as_list(value: object, column: str, where: str) -> list[Any] | None:
    """A list of at least one entry, given as such or as JSON text."""
    if isinstance(value, str):
        value = _json(value, where, column)
        if wrong := complaint(value):
            raise PromptFileError(f"{where}: column {column!r} {wrong}")
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise PromptFileError(f"{where}: {column} is a {kind(value)}, not a list of at least one message")
    return value


def _led_by(system: str, messages: list[dict[str, Any]] | None, prompt: str | None) -> list[dict[str, Any]] | None:
    """The row's messages, or its prompt as a user's, behind the system message; a row that has one of its own keeps that."""
    if messages is None and prompt is not None:
        messages = [{"role": "user", "content": prompt}]
    if messages is None or messages[0]["role"] == "system":
        return messages
    return [{"role": "system", "content": system}, *messages]


def announced(rows: Iterable[T], what: str, clock: Callable[[], float] = time.monotonic) -> Iterator[T]:
    """The same rows; a line on standard error every `EVERY_S` seconds, as long as they last, and behind the last if that took
    so long."""
    begin = told = clock()
    count = 0
    for count, row in enumerate(rows, start=1):
        yield row
        if (now := clock()) - told >= EVERY_S:
            print(f"{what}: {count:,} read in {now - begin:.0f} s", file=sys.stderr, flush=True)
            told = now
    if told > begin:
        print(f"{what}: all {count:,} read in {clock() - begin:.0f} s", file=sys.stderr, flush=True)
