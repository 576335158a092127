"""Conditions of a shell script: `[ ... ]`, `[[ ... ]]` and `test`. None: the outcome is unknown, as that of every command is."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from roll.compat.shell.expansion import unknown_in

_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt, "-ge": operator.ge,
}  # fmt: skip


def outcome(words: Sequence[str], patterns: bool) -> bool | None:
    """`words`: those between the brackets. `patterns`: `==` compares with a pattern, as in `[[ ... ]]`."""
    for sign, stops in (("-o", True), ("||", True), ("-a", False), ("&&", False)):
        if sign in words:
            at = words.index(sign)
            first = outcome(words[:at], patterns)
            return stops if first is stops else _both(first, outcome(words[at + 1 :], patterns), stops)
    if words[:1] == ["!"]:
        inner = outcome(words[1:], patterns)
        return None if inner is None else not inner
    if any(map(unknown_in, words)):
        return None
    return _plain(words, patterns)


def _both(first: bool | None, second: bool | None, stops: bool) -> bool | None:
    if second is stops:
        return stops
    return None if first is None or second is None else second


def _plain(words: Sequence[str], patterns: bool) -> bool | None:
    match words:
        case []:
            return False
        case [text] | ["-n", text]:
            return text != ""
        case ["-z", text]:
            return text == ""
        case [left, "=" | "==" | "!=" as sign, right]:
            same = fnmatchcase(left, right) if patterns else left == right
            return same is (sign != "!=")
        case [left, sign, right] if sign in _NUMBERS and _is_number(left) and _is_number(right):
            return _NUMBERS[sign](int(left), int(right))
    return None


def _is_number(text: str) -> bool:
    return text.strip().lstrip("-").isdigit()
