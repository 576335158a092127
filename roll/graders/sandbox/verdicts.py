"""Weighs what an object of a solution says, once a test has told it a value: it may be its own judge.

A test asks `f(8).equals(8731)`; an object that says yes to everything passes it. So what such an object says counts only if the
test has made the object itself, of a class that the task is about, or if it has said different things, or something with content.
The rest is tried once more with other values, when the tests are over: whoever then says the same is a cheat. Otherwise nobody
can tell, and that is an error of the judge.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from roll.graders.sandbox.proxies import Remote, RemoteType
from roll.graders.sandbox.questions import OPERATORS, ORDER
from roll.graders.sandbox.read_tests import COMPARES, OF_VALUES

_ARITHMETIC = OPERATORS - {*ORDER, "contains"}


@dataclass(slots=True)
class Heard:
    """Answers of objects to one question."""

    question: str
    decides: bool = False
    """True if an object that the test has not made was told a value of the test's."""
    answers: dict[str, None] = field(default_factory=dict)
    repeats: list[tuple[Callable[..., Any], tuple[Any, ...], Any]] = field(default_factory=list)
    """The question, to be asked again, its arguments, the answer."""
    asked: list[tuple[Any, Any]] = field(default_factory=list)
    """Objects that were compared with others, and these."""
    content: bool = False
    distinguishes: bool = False
    """True if it has been asked among others, and told them apart."""


class Watch:
    def __init__(self, ignored: frozenset[tuple[int, int, int, int]]) -> None:
        """`ignored`: places in the test's code of calls whose values nobody uses."""
        self.ignored = ignored
        self._heard: dict[tuple[str, str], Heard] = {}
        self.weighed: dict[int, Heard] = {}
        """Records by the handle of an answer that is an object: whether it is true is its verdict."""

    def heard(self, this: Any, question: str, repeat: Callable[..., Any] | None, given: tuple[Any, ...], value: Any) -> None:
        compares = question in ("eq", "contains") or (question in OPERATORS)
        if this.roll_made and question not in ("eq", "contains"):
            return
        told = any(_is_told(each) for each in given)
        if not told and question != "eq":
            return
        if repeat is None and not isinstance(value, bool):  # what a function returns is compared in the test
            return
        if self._is_ignored():
            return
        heard = self._heard.setdefault((type(this).__name__, question), Heard(question))
        heard.decides = heard.decides or (told and (question == "eq" or not this.roll_made))
        if isinstance(value, Remote):
            self.weighed[value.roll_handle] = heard
            return
        if repeat is not None and len(heard.repeats) < 8:
            heard.repeats.append((repeat, given, value))
            if question == "eq" and isinstance(given[0], Remote):
                heard.asked.append((this, given[0]))
        echo = not isinstance(value, bool) and any(each is value or str(each) == str(value) for each in given)
        plain = isinstance(value, bool) or not _true(value) or echo or compares or question in OF_VALUES
        heard.content = heard.content or not plain
        heard.answers[repr(value)[:200] if isinstance(value, bool) or not echo else "echo"] = None

    def tells(self, this: Any, question: str) -> None:
        self._heard.setdefault((type(this).__name__, question), Heard(question)).distinguishes = True

    def _is_ignored(self) -> bool:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_globals.get("__name__", "").startswith("roll."):
            frame = frame.f_back
        if frame is None or frame.f_code.co_filename != "tests.py":  # a tool of Python's, which compares for the test
            return False
        positions = list(frame.f_code.co_positions())[frame.f_lasti // 2]
        return positions in self.ignored

    def verdict(self) -> tuple[str, str]:
        """Returns why the tests are not passed, and why nobody can tell; both empty if the answers count."""
        doubtful = ""
        for heard in self._heard.values():
            if not heard.answers:  # objects, which are compared themselves
                continue
            if len(heard.answers) > 1 and heard.question not in _ARITHMETIC:
                continue
            if heard.distinguishes or (heard.content and not all(_says_again(*each) for each in heard.repeats)):
                continue
            again = any(_says_again(*each) for each in heard.repeats if not (each[2] is False or each[2] is None))
            if again and _compares(heard.question) and (heard.decides or heard.question == "eq"):
                return f"what it returns says the same of every value that it is asked with ({heard.question})", ""
            if heard.decides or again or (heard.asked and all(_equals_all(*each) for each in heard.asked)):
                doubtful = doubtful or f"an object of the solution's own says itself whether it is right ({heard.question})"
        return "", doubtful


def _compares(question: str) -> bool:
    known = question == "eq" or question in OPERATORS or question in OF_VALUES
    return known or any(word in question.lower() for word in COMPARES)


def _is_told(value: object) -> bool:
    """True if it is a value of the test's; functions are none."""
    return not isinstance(value, Remote | RemoteType) and not callable(value)


def _true(value: Any) -> bool:
    try:
        return bool(value)
    except Exception:  # boundary: an array has no truth
        return True


def _equals_all(this: Any, other: Any) -> bool:
    """True if it says so of all objects of the class, however they differ."""
    shown = repr(vars(this)), repr(vars(other))
    others = [each for each in this.roll_peer.known(type(other)) if each is not this and each is not other][:24]
    differ = [each for each in others if repr(vars(each)) not in shown][:8]
    return bool(differ) and all(this.roll_peer.ask(this.roll_handle, "eq", each) is True for each in differ)


def _says_again(repeat: Callable[..., Any], given: tuple[Any, ...], value: Any) -> bool:
    others = tuple(other_than(each) for each in given)
    try:
        again = repeat(*others)
    except Exception:  # boundary: it distinguishes
        return False
    if isinstance(again, Remote):
        return False
    echoes = not isinstance(again, bool) and any(str(each) == str(again) for each in others)
    return echoes or repr(again) == repr(value)


def other_than(value: Any) -> Any:
    """A value of the same kind that is another."""
    kind = type(value)
    if kind is bool:
        return not value
    if kind in (int, float, complex):
        return value * 3 + 1013
    if kind in (str, bytes):
        return value + (" another" if kind is str else b" another")
    if kind in (list, tuple):
        return kind([*map(other_than, value), 1013])
    if kind in (set, frozenset):
        return kind({*map(other_than, value), 1013})
    if kind is dict:
        return {other_than(key): other_than(each) for key, each in value.items()} | {1013: 1013}
    return object()
