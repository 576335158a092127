"""Is a mathematical answer equal to the reference? Runs in a grader process; imports math-verify (and so SymPy) there only."""

from __future__ import annotations

import logging
import re

from math_verify import parse, verify

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own time limit is off: the pool has a hard one

MARKED = re.compile(r"\$|\\\(|\\\[|\\boxed|\\begin")
"""How math-verify finds LaTeX inside a text."""


def grade(item: dict[str, str]) -> float:
    """1.0 if `item["response"]` ends with an answer equal to `item["ground_truth"]`, else 0.0.

    The ground truth is a number, LaTeX with or without dollar signs, or a \\boxed{...}. Raises `ValueError` if it has no
    meaning."""
    gold = parse(delimited(item["ground_truth"]), parsing_timeout=None)
    if not gold:
        raise ValueError(f"the ground truth {item['ground_truth']!r} is not a mathematical expression")
    answer = parse(item["response"], parsing_timeout=None)
    return float(verify(gold, answer, timeout_seconds=None))


def delimited(expression: str) -> str:
    """The expression in a form that math-verify reads as LaTeX."""
    return expression if MARKED.search(expression) else f"\\boxed{{{expression}}}"
