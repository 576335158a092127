"""Answers that differ from the reference in one place earn 0: reference answers of the forms that public data sets have, each
perturbed in every way that its form offers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from roll.graders.math_grader import grade

pytestmark = pytest.mark.slow

TRUTHS = [
    # whole numbers, also as AIME and GSM8K write them
    "204", "7", "0", "-49", "1", "10,\\!080", "3665088000", "-2",
    # fractions and decimals
    r"\frac{243}{625}", r"\dfrac{17}{50}", r"-\dfrac{10}{9}", r"\frac{7}{4}", "0.15", "3.21", r"1\frac{4}{5}", "5/8",
    # constants and roots
    r"288 \pi", r"\dfrac{\pi}{4}", r"-2\pi i", r"1 + \sqrt{2}", r"2\sqrt{3}", "e^2", r"\ln 2", r"\dfrac{4}{e}",
    r"1 \pm \sqrt{19}",
    # complex numbers, angles, bases
    "6 - 5i", "1+274i", r"30^\circ", "52_8",
    # expressions
    "x^5 - x^4 + x^3 - 1", "15x - 80", "(a+5)(b+2)", r"\frac{11+9a}{20}", "2n + 1", r"\dfrac{1}{n}", "x^{x^2}", "a^{n-1}(a + bn)",
    # equations and inequalities
    "y = 3x + 2", "f(x) = x^2", r"n \geq 3", "q > 1",
    # tuples, lists, intervals, sets, matrices
    "(6,31,-1)", r"\left( 3, \frac{\pi}{2} \right)", "3, 5, 7", r"(5,\infty)", "[0, 25]", "(0, 1]", r"(-\infty, 1)",
    r"\{1, 2, 4\}",
    r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}", r"(2,3) \cup (4, 6)",
    # words and letters
    "Yes", "No", "True", r"\text{even}", r"\text{(E)}", "B", r"\infty",
]  # fmt: skip
_OTHER = {
    "Yes": "No",
    "No": "Yes",
    "True": "False",
    "yes": "no",
    "no": "yes",
    "even": "odd",
    "A": "B",
    "B": "C",
    "C": "D",
    "D": "A",
}
_OTHER |= {"E": "A", r"\infty": "0"}
_WORD = re.compile(r"^(?:\\text\{)?\(?([A-Za-z]+|\\infty)\)?\}?$")
_SINGLE = re.compile(r"^[^,<>=|]*$")
_TUPLE = re.compile(r"^(?:\\left)?\(\s*([^,()[\]]+),(.*?)(?:\\right)?\)$")


def _last_number(truth: str) -> str:
    return re.sub(r"\d+(?!.*\d)", lambda found: str(int(found[0]) + 1), truth)


def _first_number(truth: str) -> str:
    return re.sub(r"\d+", lambda found: str(int(found[0]) + 10), truth, count=1)


def _longer(truth: str) -> str:
    return f"{truth}1" if re.fullmatch(r"-?\d+(\.\d+)?", truth) else truth


def _decimal(truth: str) -> str:
    return f"{truth}.01" if re.fullmatch(r"-?\d+", truth) else truth


def _negated(truth: str) -> str:
    number = _SINGLE.match(truth) and not _WORD.match(truth) and "pm" not in truth and "matrix" not in truth and truth != "0"
    return (truth[1:] if re.match(r"-[^-+ ]*$", truth) else f"-({truth})") if number and "cup" not in truth else truth


def _inverted(truth: str) -> str:
    return re.sub(r"(frac)\{([^{}]+)\}\{([^{}]+)\}", r"\1{\3}{\2}", truth, count=1)


def _other_constant(truth: str) -> str:
    return truth.replace(r"\pi", "e")


def _other_relation(truth: str) -> str:
    for one, other in ((">", "<"), (r"\geq", r"\leq"), ("<", ">")):
        if one in truth:
            return truth.replace(one, other)
    return truth


def _other_bracket(truth: str) -> str:
    if not (re.match(r"^[(\[].*,.*[)\]]$", truth) and ("infty" in truth or "[" in truth or "]" in truth)) or "cup" in truth:
        return truth
    return ("[" if truth[0] == "(" else "(") + truth[1:] if "(-\\infty" not in truth else f"{truth[:-1]}]"


def _swapped(truth: str) -> str:
    found = _TUPLE.match(truth)
    return f"({found[2].strip()}, {found[1].strip()})" if found and "cup" not in truth else truth


def _dropped(truth: str) -> str:
    return re.sub(r",[^,()[\]{}]*(\\?[)\]}])?$", r"\1", truth) if "!" not in truth and "cup" not in truth else truth


def _other_word(truth: str) -> str:
    found = _WORD.match(truth)
    return truth.replace(found[1], _OTHER[found[1]]) if found and found[1] in _OTHER else truth


def _reversed_word(truth: str) -> str:
    found = _WORD.match(truth)
    return truth.replace(found[1], found[1][::-1]) if found and len(found[1]) > 1 and found[1].isalpha() else truth


def _minus(truth: str) -> str:
    return re.sub(r"\+", "-", truth, count=1) if "+" in truth else re.sub(r"(?<=[\w}] )-", "+", truth, count=1)


def _other_variable(truth: str) -> str:
    return truth if _WORD.match(truth) or "text" in truth else re.sub(r"(?<![A-Za-z\\{])[xnab](?![a-zA-Z])", "w", truth)


def _without_root(truth: str) -> str:
    return truth.replace(r"\sqrt", "")


def _one_sign(truth: str) -> str:
    return truth.replace(r"\pm", "+")


KINDS: dict[str, Callable[[str], str]] = {
    "the last number": _last_number,
    "the first number": _first_number,
    "a digit more": _longer,
    "a decimal more": _decimal,
    "the sign": _negated,
    "the fraction inverted": _inverted,
    "another constant": _other_constant,
    "another relation": _other_relation,
    "an end of the interval": _other_bracket,
    "the order of a tuple": _swapped,
    "a member less": _dropped,
    "another word": _other_word,
    "the word reversed": _reversed_word,
    "minus for plus": _minus,
    "another variable": _other_variable,
    "no root": _without_root,
    "one sign of two": _one_sign,
}
FORMS = ("So the answer is \\boxed{{{0}}}.", "Therefore the final answer is ${0}$.")


def perturbed(truth: str) -> Iterator[tuple[str, str]]:
    """The kinds that change the answer, and the answers that they make of it."""
    for kind, change in KINDS.items():
        if (answer := change(truth)) != truth:
            yield kind, answer


def test_a_perturbed_answer_earns_nothing() -> None:
    answers = {(truth, kind, answer) for truth in TRUTHS for kind, answer in perturbed(truth)}
    assert len(answers) >= 200
    assert {kind for _, kind, _ in answers} == set(KINDS), "each kind has answers"
    earned = {
        (*each, form) for each in answers for form in FORMS if grade({"ground_truth": each[0], "response": form.format(each[2])})
    }
    assert not earned


def test_the_unperturbed_answer_earns_one() -> None:
    missed = {
        (truth, form) for truth in TRUTHS for form in FORMS if not grade({"ground_truth": truth, "response": form.format(truth)})
    }
    assert not missed
