"""The answer within a response: the text behind the thinking, a program, the letter of a choice. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

BEGIN_OF_THINKING, END_OF_THINKING = "<think>", "</think>"
END_OF_SOLUTION = "####"
LONGEST_PROGRAM = 100_000
"""Characters; a longer one is no answer."""
_PYTHON = {"", "python", "python3", "py"}
_SAID = "answer is"
_WRAPPED = re.compile(r"\\(?:text|mathrm|mathbf|textbf|rm|bf)\s*\{([^{}]*)\}")
_ALONE = re.compile(r"[\s$*({\[]*([A-Z])(?:[\s$*)}\].:,].*)?", re.DOTALL)
_LISTED = re.compile(
    r"[\s$*({\[]*[A-Z][\s$*)}\]]*(?:(?:/|&|\||\bor\b|\band\b)\W*[A-Z](?![\w'])(?!\s+is\b)|[,;]\W*[A-Z](?=\W*(?:[,;/.]|or\b|and\b|$)))"
)
"""Several letters: "A or B", "A, B, C"; "A, B is wrong" are not."""
_ANOTHER = re.compile(r"(?<![A-Za-z])[A-Z](?![A-Za-z'])")
LONGEST_BOX = 1000
"""Characters."""


def answer_text(response: str, prompt: str = "") -> str:
    """Returns the text behind the last `</think>`; without one, the whole response."""
    return response.rpartition(END_OF_THINKING)[2]


def conclusion(response: str, prompt: str) -> str:
    """Returns the text behind `</think>`, or the last of several paragraphs; empty without either. Empty, too, if the thinking is
    not marked properly: it begins once, at the end of the prompt or at the start of the response, and ends at most once."""
    begun = prompt.rstrip("\n").endswith(BEGIN_OF_THINKING)
    misplaced = BEGIN_OF_THINKING in response and (begun or not response.startswith(BEGIN_OF_THINKING))
    if misplaced or response.count(END_OF_THINKING) > 1:
        return ""
    border = END_OF_THINKING if END_OF_THINKING in response else "\n\n"
    return response.rpartition(border)[2].strip() if border in response else ""


ANSWER_PARTS: Mapping[str, Callable[[str, str], str]] = {"response": answer_text, "conclusion": conclusion}


def reference(ground_truth: str) -> str:
    """Returns the text behind the last `####` (GSM8K's ground truth is a worked solution); without one, the whole text."""
    return ground_truth.rpartition(END_OF_SOLUTION)[2].strip()


def program_of(response: str) -> str | None:
    """The last fenced block of Python behind the thinking, or all that is there if nothing is fenced; None if there is none."""
    answer = answer_text(response)
    blocks: list[str] = []
    inside: list[str] | None = None
    language, fenced = "", False
    for line in answer.splitlines(keepends=True):
        if not line.lstrip().startswith("```"):
            if inside is not None:
                inside.append(line)
        elif inside is None:
            words = line.strip().strip("`").lower().split()  # behind the language there may be more: python title="x.py"
            language, inside, fenced = words[0] if words else "", [], True
        else:
            if language in _PYTHON:
                blocks.append("".join(inside))
            inside = None
    program = blocks[-1] if fenced and blocks else "" if fenced else answer
    return program if program.strip() and len(program) <= LONGEST_PROGRAM else None


@dataclass(frozen=True, slots=True)
class Choice:
    letter: str
    """A to Z; empty if there is none, or more than one in the box."""
    boxed: bool


def choice_of(response: str) -> Choice:
    """Returns the choice in the last box behind the thinking; without a box, that behind "answer is"."""
    answer = answer_text(response)
    if (start := answer.rfind("\\boxed{")) >= 0:
        box = answer[start + len("\\boxed{") :][:LONGEST_BOX]
        end = closing_brace(box, 0)
        return Choice(_only_letter(box[: end or 0]), boxed=True)
    said = answer.lower().rfind(_SAID)
    text = answer[said + len(_SAID) :].lstrip(" :\n") if said >= 0 else ""
    listed = _LISTED.match(_WRAPPED.sub(r"\1", text[:LONGEST_BOX]))
    return Choice("" if listed else _letter(text), boxed=False)


def right_choice(ground_truth: str) -> str:
    """The letter of a reference answer: B, (B), B. text or \\boxed{B}. Raises `ValueError` if it has none."""
    letter = choice_of(ground_truth).letter or _letter(ground_truth.strip())
    if not letter:
        raise ValueError(f"the ground truth {ground_truth[:50]!r} is no letter of a choice")
    return letter


def boxed_choice(ground_truth: str) -> str:
    """Returns a response with the reference answer's choice."""
    return f"\\boxed{{{right_choice(ground_truth)}}}"


def _letter(text: str) -> str:
    found = _ALONE.fullmatch(_WRAPPED.sub(r"\1", text[:LONGEST_BOX]))
    return found[1] if found else ""


def _only_letter(text: str) -> str:
    """Returns a box's letter; "A, B" and "A or B" are no choice."""
    letter = _letter(text)
    named = set(_ANOTHER.findall(_WRAPPED.sub(r"\1", text).split(".")[0]))
    return letter if named <= {letter} else ""


def closing_brace(text: str, start: int) -> int | None:
    """The place of the brace that closes one before `start`; None if there is none."""
    depth = 1
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return end
    return None
