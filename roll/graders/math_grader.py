"""Is a mathematical answer equal to the reference? Runs in a grader process; imports math-verify (and so SymPy) there only.

math-verify finds and compares; `math_answer` takes back what its reading lets pass. An answer that takes too much time or
memory to be compared is wrong by its own making: it earns 0. How large a number it stands for is estimated first, for the parser
leaves powers, factorials and sums as they are written, and comparing would multiply them out. The ground truth is nobody's
answer: what goes wrong with it is an error.
"""

from __future__ import annotations

import logging
import math
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from math_verify import parse, verify
from sympy import Add, Float, Integer, Integral, MatrixBase, Mul, Pow, Product, Rational, Sum, binomial, exp, factorial, gamma
from sympy.core.cache import clear_cache
from sympy.functions.combinatorial.factorials import factorial2, subfactorial

from roll.graders.math_answer import boxes, final_answer, joined, objection

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own time limit is off: the pool has a hard one

MARKED = re.compile(r"\$|\\\(|\\\[|\\boxed")
"""Marks by which math-verify finds LaTeX inside a text."""
PERCENT, PERCENT_OF_TRUTH = re.compile(r"(?<=[\d}])\s*\\%"), re.compile(r"(?<=[\d}])\s*\\?%")
"""A sign behind a number; without a backslash TeX reads nothing behind it."""
LONGEST_RESPONSE = 200_000
"""Characters that are searched, from the end."""
LONGEST_ANSWER = 4_000
"""Characters of a final answer."""
DEEPEST_ANSWER = 40
"""Brackets inside brackets."""
SHARE, SHORT_SHARE, ENOUGH_S = 0.25, 0.6, 1.0
"""Processor time of a comparison, as shares of the wall-clock limit: a quarter, as a busy machine gives no process all of its
time, but of short limits more, up to a second. A comparison takes about 0.01 s."""

MOST_DIGITS = 100_000
LONGEST_RANGE = 100_000
"""Terms of a sum or a product with finite limits."""


class OutOfTime(BaseException):
    """No `Exception`: SymPy catches those on its way."""


def grade(item: dict[str, Any]) -> float:
    """1.0 if `item["response"]` ends with an answer equal to `item["ground_truth"]`, else 0.0.

    The ground truth is a number, LaTeX with or without dollar signs, or a \\boxed{...}. Raises `ValueError` if it has no
    meaning. `item["limit_s"]`, if given, is the wall-clock limit of the call; `last_box` and `ignores_percent`
    are the worker's options."""
    ground_truth, response = item["ground_truth"], item["response"][-LONGEST_RESPONSE:]
    if item.get("last_box") and (found := boxes(response)):
        response = response[found[-1].start : found[-1].end]
    ground_truth, response = joined(ground_truth), joined(response)
    if item.get("ignores_percent"):
        ground_truth, response = PERCENT_OF_TRUTH.sub("", ground_truth), PERCENT.sub("", response)
    gold = parse(delimited(ground_truth), parsing_timeout=None)
    if not gold:
        raise ValueError(f"the ground truth {ground_truth!r} is not a mathematical expression")
    try:
        with processor_time(item.get("limit_s")):
            return float(_is_right(gold, ground_truth, response))
    except (OutOfTime, RecursionError):
        return 0.0
    except MemoryError:
        clear_cache()  # the next answer finds the memory that this one has filled SymPy's caches with
        return 0.0


def delimited(expression: str) -> str:
    """The expression in a form that math-verify reads as LaTeX."""
    return expression if MARKED.search(expression) else f"\\boxed{{{expression}}}"


def _is_right(gold: list[Any], ground_truth: str, response: str) -> bool:
    if _too_deep(response) or any(len(box.content) > LONGEST_ANSWER for box in boxes(response)[-1:]):
        return False
    answer = final_answer(response)
    if len(answer.text) > LONGEST_ANSWER or (answer.value != gold[0] and is_too_large(answer.value)):
        return False
    if not verify(gold, answer.values, timeout_seconds=None):
        return False
    return not objection(None if isinstance(gold[0], str) else gold[0], ground_truth, answer)


def _too_deep(response: str) -> bool:
    """True if the response nests brackets too deeply for a parser."""
    for paragraph in response.split("\n\n"):
        depth = 0
        for character in paragraph:
            if character in "({[":
                depth += 1
                if depth > DEEPEST_ANSWER:
                    return True
            elif character in ")}]":
                depth = max(depth - 1, 0)
    return False


@contextmanager
def processor_time(limit_s: float | None) -> Iterator[None]:
    """Raises `OutOfTime` inside the block when this process has used up its share of the limit. Time that other processes took
    does not count: it is not the answer's."""
    if limit_s is None:
        yield
        return

    def give_up(*_: object) -> None:
        raise OutOfTime

    signal.signal(signal.SIGVTALRM, give_up)
    most_s = max(SHARE * limit_s, min(SHORT_SHARE * limit_s, ENOUGH_S))
    signal.setitimer(signal.ITIMER_VIRTUAL, most_s, 0.05)  # again, should a bare except have swallowed the first
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def is_too_large(value: object) -> bool:
    """True if some part of an expression has more digits, or terms, than a final answer ever needs; nothing is computed."""
    try:
        return _digits(value) > MOST_DIGITS
    except OverflowError:
        return True


def _digits(value: object) -> float:
    """An upper estimate of the logarithm of the largest number that comes up; infinite where there is no end in sight."""
    if isinstance(value, MatrixBase):
        return max((_digits(entry) for entry in value.flat()), default=0.0)
    if isinstance(value, Integer):
        return abs(int(value)).bit_length() * math.log10(2)
    if isinstance(value, Rational):
        return max(_digits(value.numerator), _digits(value.denominator))
    if isinstance(value, Float):
        return abs(float(value._mpf_[2] + value._mpf_[3])) * math.log10(2)
    parts = [_digits(part) for part in getattr(value, "args", ())]
    if isinstance(value, Sum | Product | Integral):
        return max([*parts, math.inf if _is_long(value) else 0.0])
    if isinstance(value, Add):
        return max(parts, default=0.0) + math.log10(len(parts) or 1)
    if isinstance(value, Mul):
        return sum(parts)
    if isinstance(value, Pow):
        return max(parts[1], max(parts[0], 0.0) * _magnitude(parts[1], value.exp))
    if isinstance(value, exp):
        return max(parts[0], _magnitude(parts[0], value.args[0]))
    if isinstance(value, factorial | factorial2 | subfactorial | gamma):
        return _magnitude(parts[0], value.args[0]) * max(parts[0], 1.0)
    if isinstance(value, binomial):
        n, k = _magnitude(parts[0], value.args[0]), _magnitude(parts[1], value.args[1])
        return min(n, k * max(parts[0], 1.0))
    return max(parts, default=0.0)


def _magnitude(digits: float, value: object) -> float:
    """Returns the size of a number of so many digits; 1 for a value with variables, and for fractions below."""
    if isinstance(value, Integer | Rational | Float):
        return max(abs(float(value)), 1.0) if digits < 300 else math.inf
    if getattr(value, "free_symbols", None):
        return 1.0
    return 10.0**digits if digits < 300 else math.inf


def _is_long(value: Any) -> bool:
    limits = [bound for limit in value.limits for bound in limit[1:] if not isinstance(value, Integral)]
    return any(bound.is_finite is not False and _magnitude(_digits(bound), bound) > LONGEST_RANGE for bound in limits)
