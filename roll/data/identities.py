"""Which texts were seen, and where, in eight bytes each: the ids of a prompt file that is larger than memory.

A text stands for its 64-bit digest. Two texts may share one, so whoever asks compares the texts that are found.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class Identities:
    """The ids of several files that are read one after the other."""

    def __init__(self) -> None:
        self._earlier: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._present = array("Q")

    def add(self, text: str) -> None:
        self._present.append(digest(text))

    def in_earlier_file(self, text: str) -> bool:
        return _holds(self._earlier, digest(text))

    def end_file(self) -> set[int]:
        """The digests that have come twice by now."""
        everything = np.sort(np.concatenate([self._earlier, np.asarray(self._present, np.uint64)]))
        self._earlier, self._present = everything, array("Q")
        return set(everything[1:][everything[1:] == everything[:-1]].tolist())


class Positions:
    """Where texts stand in a sequence."""

    def __init__(self, digests: Iterable[int]) -> None:
        """`digests`: of the texts, in their order."""
        given = np.asarray(array("Q", digests), np.uint64)
        self._order: NDArray[np.intp] = np.argsort(given, kind="stable")
        self._sorted = given[self._order]

    def of(self, text: str) -> list[int]:
        """The positions that may be the text's."""
        wanted: Any = np.uint64(digest(text))
        begin, end = np.searchsorted(self._sorted, wanted, "left"), np.searchsorted(self._sorted, wanted, "right")
        return [int(position) for position in self._order[begin:end]]


def _holds(ascending: NDArray[np.uint64], value: int) -> bool:
    place = int(np.searchsorted(ascending, np.uint64(value)))
    return place < len(ascending) and int(ascending[place]) == value
