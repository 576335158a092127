"""Which texts were seen, and where, in eight bytes each: the ids of a prompt file that is larger than memory.

A text stands for its 64-bit digest. Two texts may share one, so whoever asks compares the texts that are found.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import chain, pairwise


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
    """Where texts stand in a sequence."""

    def __init__(self, digests: Iterable[int]) -> None:
        """`digests`: of the texts, in their order."""
        given = array("Q", digests)
        self._order = array("Q", sorted(range(len(given)), key=given.__getitem__))
        self._sorted = array("Q", (given[position] for position in self._order))

    def of(self, text: str) -> list[int]:
        """The positions that may be the text's."""
        wanted = digest(text)
        return list(self._order[bisect_left(self._sorted, wanted) : bisect_right(self._sorted, wanted)])
