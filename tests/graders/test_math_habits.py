"""Thousands, percent and several boxes: what is read, what an option changes, and that no other answer is paid for it."""

from __future__ import annotations

import pytest

from roll.graders.math_grader import grade
from roll.graders.rules import MathRuleRewardWorker

READ = [
    *(
        ("130000", f"\\boxed{{130{space}000}}")
        for space in (r"\,", "~", r"\ ", r"\;", r"\!", "{,}", r"{\,}", "\u202f", "\u2009", ",")
    ),
    ("130000", r"$130\,000$"),
    ("130000", "The answer is 130\u2009000."),
    ("130\\,000", r"\boxed{130000}"),
    ("130,000", r"\boxed{130~000}"),
    ("5000000", r"\boxed{5\,000\,000}"),
    ("-1234.5", r"\boxed{-1\,234.5}"),
    ("10000\\pi", r"\boxed{10\,000\pi}"),
    ("\\frac{1000}{3}", r"\boxed{\frac{1\,000}{3}}"),
    ("(1000, 2)", r"\boxed{(1\,000, 2)}"),
    ("(1, 200)", r"\boxed{(1,\,200)}"),
    ("2\\sqrt{3}", r"\boxed{2\,\sqrt{3}}"),
]
OTHER = [
    # A thin space, read as the end of a number, left its last three digits.
    *((part, r"\boxed{1\,000}") for part in ("0", "1", "(1, 0)", "[1, 0]")),
    *((part, r"\boxed{12\,345}") for part in ("12", "345", "12.345", "4140", "(12, 345)")),
    # Not every digit behind a space belongs to thousands.
    *((part, r"\boxed{130\,00}") for part in ("13000", "0", "130")),
    *((part, r"\boxed{2\,3}") for part in ("23", "2", "3", "6")),
    *((part, r"\boxed{1\,2345}") for part in ("12345", "1234", "2345")),
    *((part, r"\boxed{3.141\,592}") for part in ("592", "3141592")),
    ("1000000", r"\boxed{1000\,000}"),
    ("1000", r"\boxed{1\,000\,000}"),
    # Commas, tuples, intervals, sets, European decimals.
    ("13000", r"\boxed{130,00}"),
    ("1000", r"\boxed{(1, 000)}"),
    ("1200", r"\boxed{(1,\,200)}"),
    ("1200", r"\boxed{[1,200]}"),
    ("\\{1,200\\}", r"\boxed{1\,200}"),
    ("1000.5", r"\boxed{1.000,5}"),
]
LAST = [
    (r"\boxed{41}. Wait, no: \boxed{42}", 1.0),
    (r"x = \boxed{3} and the other is 4 so the sum is \boxed{42}", 1.0),
    (r"\boxed{42}. Wait, no: \boxed{41}", 0.0),
    (r"\boxed{42} or \boxed{41}", 0.0),
    (r"\boxed{42} or \boxed{}", 0.0),
    (r"\boxed{x = \boxed{42}}", 1.0),
    ("the answer is 42", 1.0),
]
PERCENT = [
    # (truth, answer, with the option, without)
    ("50", r"\boxed{50\%}", 1.0, 0.0),
    ("50\\%", r"\boxed{50}", 1.0, 0.0),
    ("50%", r"\boxed{50 \%}", 1.0, None),
    ("50\\%", r"\boxed{0.5}", 0.0, 0.0),
    ("0.5", r"\boxed{50\%}", 0.0, 0.0),
    ("87", r"\boxed{8\% 7}", 0.0, 0.0),
    ("7", "\\boxed{8 % 7\n}", 0.0, 0.0),
]


def earned(truth: str, response: str, **options: bool) -> float:
    return grade({"ground_truth": truth, "response": response, **options})


@pytest.mark.parametrize(("truth", "response"), READ)
def test_thousands_are_read_whatever_sets_them_apart(truth: str, response: str) -> None:
    assert earned(truth, response) == 1.0


@pytest.mark.parametrize(("truth", "response"), OTHER)
def test_no_other_answer_in_similar_writing_is_paid(truth: str, response: str) -> None:
    assert earned(truth, response) == 0.0


@pytest.mark.parametrize(("response", "earns"), LAST)
def test_the_last_box_counts_where_that_is_asked_for(response: str, earns: float) -> None:
    assert earned("42", response, last_box=True) == earns


def test_boxes_that_stand_close_are_one_set_unless_it_is() -> None:
    both = r"\boxed{1} and \boxed{2}"
    assert (earned("\\{1, 2\\}", both), earned("\\{1, 2\\}", both, last_box=True), earned("2", both, last_box=True)) == (1, 0, 1)


@pytest.mark.parametrize(("truth", "response", "ignored", "kept"), PERCENT)
def test_a_sign_of_percent_counts_unless_it_is_ignored(truth: str, response: str, ignored: float, kept: float | None) -> None:
    assert earned(truth, response, ignores_percent=True) == ignored
    assert kept is None or earned(truth, response) == kept


def test_an_option_is_true_or_false() -> None:
    with pytest.raises(ValueError, match=r"reward_args\.last_box is 'yes'; it must be true or false"):
        MathRuleRewardWorker({"timeout_s": 1, "max_concurrency": 1, "reward_args": {"last_box": "yes"}})
