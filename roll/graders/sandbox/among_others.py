"""Asks an operator's question among others of its kind, so that who answers cannot know which one counts.

For objects of what may be a class, or a function with a capital: `Build(8) == 8731`, `8731 in Build(8)`. An operator changes
nothing, so it may be asked more often than the test does. Whoever has no value to answer from says the same of all, or guesses.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import pairwise
from typing import Any

OTHERS = 24
ROUNDS = 3
"""A guess, also one that counts the questions, passes once in (OTHERS + 1) ** ROUNDS times."""


def told_apart(ask: Callable[[Any], Any], question: str, value: Any) -> tuple[Any, bool]:
    """Asks about the value among others like it; returns the answer, and if it depends on the value, and on nothing else."""
    answer, apart = _asked_once(ask, question, value)
    for _ in range(ROUNDS - 1):
        if not apart:
            break
        again, apart = _asked_once(ask, question, value)
        apart = apart and repr(again) == repr(answer)
    return answer, apart


def _asked_once(ask: Callable[[Any], Any], question: str, value: Any) -> tuple[Any, bool]:
    others = [near for near in (_other(value, i) for i in range(OTHERS)) if near is not None]
    asked = [(each, False) for each in others]
    asked.insert(secrets.randbelow(len(asked) + 1), (value, True))
    answer, rest = None, list[tuple[Any, Any]]()
    for each, counts in asked:
        said: Any = None
        try:
            said = ask(each)
        except Exception:  # boundary: for others there may be no answer
            if counts:
                raise
            said = "no answer"
        if counts:
            answer = said
        else:
            rest.append((each, said))
    return answer, len(others) == OTHERS and _says_something(question, value, answer, rest)


def _says_something(question: str, value: Any, answer: Any, rest: list[tuple[Any, Any]]) -> bool:
    alike = sum(repr(said) == repr(answer) for _, said in rest)
    if question in ("lt", "le", "gt", "ge") and type(value) in (int, float):
        answers = [said is True for _, said in sorted([*rest, (value, answer)], key=lambda pair: pair[0])]
        changes = sum(one != two for one, two in pairwise(answers))
        return changes == 1
    if question == "eq":
        return alike == 0
    return alike <= len(rest) // 4


def _other(value: Any, i: int) -> Any:
    """Another value of the kind, the nearer the smaller `i`; None for a kind of which there are no others."""
    kind, sign = type(value), -1 if i % 2 else 1
    if kind is bool or value is None:
        return None
    if kind in (int, float):
        return value + sign * (1 + (i // 2) ** 2)
    if kind is str:
        return f"{value[: i % (len(value) + 1)]}{chr(97 + i)}{value[i % (len(value) + 1) :]}"
    if kind in (list, tuple):
        place = i % (len(value) + 1)
        return kind([*value[:place], 1013 + i, *value[place:]])
    if kind in (set, frozenset):
        return kind({*value, 1013 + i})
    if kind is dict:
        return value | {1013 + i: i}
    return None
