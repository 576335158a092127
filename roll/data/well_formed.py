"""Values that may be stored: text that UTF-8 can hold, and a nesting that every later reader survives.

JSON can spell half of a surrogate pair (`"\\ud800"`), which is no character: it is read without complaint, and breaks the first
file that it is written to. Nothing here recurses, so depth costs no stack.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

DEEPEST = 64
"""Levels of lists and mappings inside a value."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def complaint(value: object) -> str:
    """What is wrong with a value made of mappings, lists and scalars; empty if nothing is."""
    waiting = [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, str):
            if found := _SURROGATE.search(item):
                return f"has the lone surrogate \\u{ord(found[0]):04x} at character {found.start()}: half of a character"
        elif isinstance(item, Mapping | list | tuple):
            if depth >= DEEPEST:
                return f"is nested more than {DEEPEST} levels deep"
            inner = [*item.keys(), *item.values()] if isinstance(item, Mapping) else item
            waiting += [(each, depth + 1) for each in inner]
    return ""
