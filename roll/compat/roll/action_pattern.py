"""A regular expression of which one group alone captures."""

from __future__ import annotations

import re
from itertools import count

_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<opens>\((?:\?P<\w+>|(?!\?)))|.", re.DOTALL)
"""An escaped character, a set of characters, the beginning of a group that captures, or any other character."""


def only_group(pattern: str, number: int) -> str | None:
    """The pattern with the group `number` (from 1) as the only one that captures. None if it has fewer groups or one only, refers
    to a group, or cannot be read: then it is left as it is."""
    try:
        groups = re.compile(pattern).groups
    except (re.error, RecursionError, OverflowError):
        return None
    if groups < max(number, 2) or re.search(r"\\[1-9]|\(\?P=|\(\?\(", pattern):
        return None
    numbers = count(1)
    rewritten = _PIECE.sub(lambda piece: "(?:" if piece["opens"] and next(numbers) != number else piece[0], pattern)
    return rewritten if re.compile(rewritten).groups == 1 else None
