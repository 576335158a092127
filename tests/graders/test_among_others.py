"""An operator's answer counts where it depends on the value that is asked about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from roll.graders.sandbox import among_others
from roll.graders.sandbox.among_others import OTHERS, told_apart


@pytest.mark.parametrize("value", [8731, -2.5, "right", [8, 7], (), {3}, {"a": 1}])
def test_an_honest_answer_is_told_apart_however_often_it_is_asked(value: Any) -> None:
    for _ in range(20):
        assert told_apart(lambda each: each == value, "eq", value) == (True, True)
        assert told_apart(lambda each: each in (value, "else"), "contains", value) == (True, True)


def _yes_at(n: int) -> Callable[[Any], bool]:
    asked = iter(range(1, 10_000))
    return lambda _: next(asked) == n


@pytest.mark.parametrize("place", range(OTHERS + 1))
def test_who_counts_the_questions_and_guesses_one_place_right_is_not_believed(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = iter([place, (place + 1) % (OTHERS + 1), place])
    monkeypatch.setattr(among_others.secrets, "randbelow", lambda _: next(places))
    assert told_apart(_yes_at(place + 1), "eq", 8731)[1] is False


def test_who_says_the_same_of_all_is_not_believed() -> None:
    assert told_apart(lambda _: True, "eq", 8731)[1] is False
    assert told_apart(lambda _: True, "contains", 8731)[1] is False
