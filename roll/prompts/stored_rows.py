"""Rows that are ready to be served, in a file on disk: memory holds where each begins, whatever the rows hold.

The file has no name, so it is gone with its last user. A row is read when it is asked for; what is read often stays in the
system's page cache. Which ids were seen, and where, is kept in eight bytes each: a text stands for its 64-bit digest. Two texts
may share one, so the texts that are found are compared.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, BinaryIO, overload

from roll.core.data.sample import Prompt
from roll.core.errors import PromptFileError

ANSWERS = "trained_answers"
"""The entry of a row that is trained as it stands with its answers: token ids, mask (1: trained) and text of each."""
QUESTION = "tokens_of_question"
"""The entry with how many of the first answer's token ids are those of turns before it."""


@dataclass(frozen=True, slots=True)
class TokenizedRow:
    """A row that is ready to be served."""

    id: str
    domain: str
    tag: str
    text: str
    input_ids: list[int]
    ground_truth: str
    extra: dict[str, Any] = field(default_factory=dict)
    conversation: list[dict[str, Any]] = field(default_factory=list)
    hinted_ids: list[int] | None = None

    def prompt(self, epoch: int) -> Prompt:
        uid = f"{self.domain}/{epoch}/{self.id}"
        said = (self.text, self.tag, self.domain, self.ground_truth, self.extra, self.conversation)
        return Prompt(uid, self.input_ids, *said, self.hinted_ids)


class LeftOut(dict[str, int]):
    """Counts of rows that cannot be used, by reason."""

    longest = 0
    """Tokens of the longest row that is too long."""
    hinted = 0
    """Tokens of the longest prompt with a hint."""
    endless = 0
    """Rows that are used though no token ends their last answer."""

    def add(self, reason: str) -> None:
        self[reason] = self.get(reason, 0) + 1

    def told(self, limit: int, key: str = "prompt_length") -> str:
        """Returns the counts in words; empty if no row is left out. `limit`: most tokens of a row, as `key` says."""
        said = [f"{count:,} {reason.replace('_', ' ')}" for reason, count in self.items()]
        do = f" ({key} is {limit:,}, {self.longest:,} would do)" if self.longest else ""
        return ", ".join(said) + do

    def check(self, usable: int, prompt_length: int) -> None:
        """Raises `PromptFileError` if no prompt is left."""
        if not usable:
            why = f"none of {sum(self.values()):,} prompts can be used: {self.told(prompt_length)}"
            raise PromptFileError(why, "a larger prompt_length, or shorter prompts")


class StoredRows(Sequence[TokenizedRow]):
    def __init__(self, file: BinaryIO, starts: array[int], lengths: array[int]) -> None:
        """`starts`, `lengths`: the bytes of each row in `file`."""
        self._file, self._starts, self._lengths = file, starts, lengths

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, which: int) -> TokenizedRow: ...
    @overload
    def __getitem__(self, which: slice) -> StoredRows: ...
    def __getitem__(self, which: int | slice) -> TokenizedRow | StoredRows:
        if isinstance(which, slice):
            return StoredRows(self._file, self._starts[which], self._lengths[which])
        return TokenizedRow(*json.loads(os.pread(self._file.fileno(), self._lengths[which], self._starts[which])))


class RowFile:
    """Takes rows; `rows` has all of them in order, `by_domain` those of each domain."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder`: on whose disk the rows lie; None: on that of temporary files."""
        self._file: BinaryIO = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  (closed with the last of the rows)
        self._end = 0
        self._all = _Places()
        self._of: dict[str, _Places] = {}

    def add(self, row: TokenizedRow) -> None:
        """Raises `OSError` where the disk is full."""
        content = json.dumps([getattr(row, name) for name in TokenizedRow.__slots__]).encode()
        self._file.write(content)
        for places in (self._all, self._of.setdefault(row.domain, _Places())):
            places.starts.append(self._end)
            places.lengths.append(len(content))
        self._end += len(content)

    @property
    def rows(self) -> StoredRows:
        self._file.flush()
        return StoredRows(self._file, self._all.starts, self._all.lengths)

    def by_domain(self) -> dict[str, StoredRows]:
        """Returns rows by domain, in the order of the domains' first rows."""
        self._file.flush()
        return {domain: StoredRows(self._file, places.starts, places.lengths) for domain, places in self._of.items()}

    def __len__(self) -> int:
        return len(self._all.starts)

    def __iter__(self) -> Iterator[TokenizedRow]:
        return iter(self.rows)


@dataclass(slots=True)
class _Places:
    starts: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("I"))


def digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class Identities:
    """The ids of several files that are read one after the other."""

    def __init__(self) -> None:
        self._earlier = array("Q")
        """Ascending."""
        self._present = array("Q")

    def add(self, text: str) -> None:
        self._present.append(digest(text))

    def in_earlier_file(self, text: str) -> bool:
        wanted = digest(text)
        place = bisect_left(self._earlier, wanted)
        return place < len(self._earlier) and self._earlier[place] == wanted

    def end_file(self) -> set[int]:
        """The digests that have come twice by now."""
        self._earlier, self._present = array("Q", sorted(chain(self._earlier, self._present))), array("Q")
        return {one for one, following in pairwise(self._earlier) if one == following}


class Positions:
    """Places of texts in a sequence."""

    def __init__(self, digests: Iterable[int]) -> None:
        """`digests`: of the texts, in their order."""
        given = array("Q", digests)
        self._order = array("Q", sorted(range(len(given)), key=given.__getitem__))
        self._sorted = array("Q", (given[position] for position in self._order))

    def of(self, text: str) -> list[int]:
        """The positions that may be the text's."""
        wanted = digest(text)
        return list(self._order[bisect_left(self._sorted, wanted) : bisect_right(self._sorted, wanted)])
