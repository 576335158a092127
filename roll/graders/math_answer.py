"""The final answer within a response, and objections to an answer that math-verify takes for equal to the ground truth.

The search is math-verify's own; here it also returns the text that it took. Its reading takes words for products of letters, and
drops the base of a numeral, the left side of an equation, the text behind a value, an outer box and repeated members of a list.
Each objection looks for one of these, and spares those that the ground truth has too. It can only take a reward away.

Imported in grader processes only, as math-verify and SymPy are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from latex2sympy2_extended.logic import And
from math_verify import parse, verify
from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig, extract_match, get_extraction_regexes
from sympy import Basic, Eq, Float
from sympy.core.function import AppliedUndef

from roll.graders.answers import closing_brace

_TARGETS = (LatexExtractionConfig(), ExprExtractionConfig())
_BOX = re.compile(r"\\f?box(?:ed)?\s*\{")
MOST_UNCLOSED = 20
"""Boxes without an end that are passed over: each costs a look at the whole rest."""
# A candidate may begin with the words that announce it: "the final answer is $42$".
_ENVELOPE = re.compile(r"^[^$\\]*(?:\$\$?|\\\[|\\\()(.*?)(?:\$\$?|\\\]|\\\))\s*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    values: list[Any]
    """Values that math-verify compares: a SymPy expression and its text, or the text alone if it has no meaning. May be empty."""
    text: str
    """The answer's text in the response, without box or dollar signs."""
    before: str = ""
    """The text before it in the response."""
    after: str = ""
    """The text behind it in the response."""
    in_box: bool = False

    @property
    def value(self) -> Any:
        """The expression; None if the text has no meaning."""
        return self.values[0] if self.values and not isinstance(self.values[0], str) else None


@dataclass(frozen=True, slots=True)
class BoxedAnswer:
    """An outermost \\boxed{...}, or \\fbox{...}."""

    start: int
    end: int
    content: str


def final_answer(response: str) -> FinalAnswer:
    """The candidate that math-verify would take: the first kind of place that has any, there the last one with a meaning."""
    first_text = ""
    for matches in _candidates(response):
        for match, target in matches:
            try:
                value, shown = extract_match(match, target)
            except Exception:  # boundary: SymPy raises anything; such a text has no meaning, as in math-verify
                continue
            first_text = first_text or shown
            if value is not None:
                return _answer(response, match, [value, first_text])
    outer = boxes(response)
    return FinalAnswer([first_text] if first_text else [], outer[-1].content if outer else first_text, in_box=bool(outer))


def boxes(text: str) -> list[BoxedAnswer]:
    """The outermost boxes, in order. One that is never closed is left out."""
    found: list[BoxedAnswer] = []
    position = unclosed = 0
    while unclosed < MOST_UNCLOSED and (opening := _BOX.search(text, position)):
        end = closing_brace(text, opening.end())
        if end is None:
            position, unclosed = opening.end(), unclosed + 1
        else:
            found.append(BoxedAnswer(opening.start(), end + 1, text[opening.end() : end].strip()))
            position = end + 1
    return found


def _answer(response: str, match: re.Match[str], values: list[object]) -> FinalAnswer:
    inside = boxes(match[0])
    before, after = response[: match.start()], response[match.end() :]
    if inside:
        return FinalAnswer(values, inside[-1].content, before, after, in_box=True)
    for box in boxes(response):
        if box.start <= match.start() and match.end() <= box.end:  # a number in a box that has no meaning as a whole
            return FinalAnswer(values, box.content, response[: box.start], response[box.end :], in_box=True)
    envelope = _ENVELOPE.match(match[0])
    return FinalAnswer(values, envelope[1].strip() if envelope else match[0].strip(), before, after)


def _candidates(response: str) -> Iterator[list[tuple[re.Match[str], object]]]:
    """Candidates by kind of place, the most significant kind first; within a kind the rightmost candidate first."""
    patterns = [
        (pattern, target, priority) for of_target, target in get_extraction_regexes(_TARGETS) for pattern, priority in of_target
    ]
    for _, group in groupby(sorted(patterns, key=lambda each: each[2]), key=lambda each: each[2]):
        matches = [(match, target) for pattern, target, _ in group for match in pattern.finditer(response)]
        yield sorted(matches, key=lambda each: (each[0].end(), -each[0].start()), reverse=True)


_TEXT = re.compile(r"\\(?:text\w*|mbox|math(?:rm|bf|it|sf|tt)|operatorname)\s*\{([^{}]*)\}")
_JOINING = re.compile(r"\\(?:text\w*|mbox|mathrm)\s*\{\s*,?\s*(?:and|or)\s*\}")
_CLAIMS = frozenset(
    (
        *("not", "is", "isn", "isnt", "it", "its", "wrong", "false", "incorrect", "never", "neither", "nor", "no", "actually"),
        *("instead", "rather", "but", "wait"),
    )
)
"""Words that make a remark of a text behind a value, which a unit never has."""
_MORE_WORDS = {"minus", "plus", "times"}
_UNDOING = re.compile(
    r"\\(?:not|neg|lnot|sim|h?phantom|vphantom|[bx]?cancel|sout)(?![a-z])|(?<!\\)%\s*(?:[-(\d]|\\[a-z](?!ext|box|ath))"
)
"""Commands that strike out or hide the text behind them; after a percent sign TeX reads nothing."""
_BASE = re.compile(r"(?<=[0-9A-Fa-f}])\s*_\s*(?:\{\s*(?:\\text\w*\s*\{|\\mathrm\s*\{)?\s*([A-Za-z]+|\d+)|([A-Za-z]+|\d+))")
_BASE_WORDS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
_BASE_WORDS |= {"eleven": 11, "twelve": 12, "sixteen": 16}
_PLAIN_EQUATION = re.compile(r"(?:^|[\s($])(-?\d+(?:\.\d+)?)\s*$")
_SHORT_WORDS = {"no", "on", "up", "to", "if", "or", "by", "in", "at", "so", "we", "he", "go", "is", "it"}

_SPACE = r"(?:\\[,;:! ]|~|\\thinspace\s?|[\u00a0\u2009\u202f]|\{\\,\})"
_THOUSANDS = re.compile(rf"(?<![\d.,])\d{{1,3}}(?:{_SPACE}\d{{3}})+(?!\d|{_SPACE}\d)")
_SIDE_BY_SIDE = re.compile(rf"\d\s*{_SPACE}\s*\d")


def joined(text: str) -> str:
    """The text with numbers in one piece whose thousands were set apart by thin spaces, of which math-verify reads the last."""
    return _THOUSANDS.sub(lambda found: re.sub(_SPACE, "", found[0]), text)


def objection(gold: object, ground_truth: str, answer: FinalAnswer) -> str:
    """The objection to an answer; empty if there is none. `gold`: the meaning of the ground truth, None if it is only text."""
    for name, found in (
        ("another word", _other_word(ground_truth, answer)),
        ("a box in a box", _box_in_box(answer)),
        ("a side of the equation is another number", _false_equation(gold, answer)),
        ("another base", _other_base(ground_truth, answer)),
        ("a remark behind the value", _remark(ground_truth, answer.text)),
        ("more than one value", _more_values(ground_truth, answer.text)),
        ("numbers side by side", bool(_SIDE_BY_SIDE.search(answer.text)) and not _SIDE_BY_SIDE.search(ground_truth)),
        ("repeated members", _repeats(gold, answer.value)),
        ("struck out", bool(_UNDOING.search(answer.text)) and not _UNDOING.search(ground_truth)),
        ("a later box has no meaning", not answer.in_box and bool(boxes(answer.after))),
    ):
        if found:
            return name
    return ""


def _other_word(ground_truth: str, answer: FinalAnswer) -> bool:
    """A word is no product of its letters: "sey" is not "yes"."""
    right, given = _letters(ground_truth), _letters(answer.text)
    return bool(right) and bool(given) and _is_word(right) and right != given


def _letters(text: str) -> str:
    """Returns the text in small letters, without marks around it, if it has only letters; empty otherwise."""
    inside = boxes(text)
    bare = _TEXT.sub(r"\1", inside[-1].content if inside else text)
    bare = re.sub(r"[\s$.(){}\\]+", "", bare)
    return bare.lower() if bare.isalpha() else ""


def _is_word(letters: str) -> bool:
    """True if the letters are a word, and no product as algebra writes it: abc, xyz, ab; m, n; AB."""
    if len(letters) < 3:
        return letters in _SHORT_WORDS
    codes = [ord(letter) for letter in letters]
    if len(letters) == 3:
        rising = all(b > a for a, b in pairwise(codes))
        return not rising and bool(set(letters) & set("aeiouy"))
    return not all(b == a + 1 for a, b in pairwise(codes))


def _box_in_box(answer: FinalAnswer) -> bool:
    """\\boxed{7 \\boxed{42}} says 7 and 42; \\boxed{x = \\boxed{42}} says 42."""
    inner = boxes(answer.text) if answer.in_box else []
    if not inner:
        return False
    around = answer.text
    for box in reversed(inner):
        around = around[: box.start] + around[box.end :]
    return bool(re.search(r"[0-9A-Za-z]", re.sub(r"^[^0-9]*=", "", around)))


def _false_equation(gold: object, answer: FinalAnswer) -> bool:
    """The last side of an equation is compared, so each other side that is a number must equal the last one."""
    if isinstance(gold, Eq | And):
        return False
    *others, last = _sides(answer.value) or [None]
    numbers = [side for side in others if isinstance(side, Basic) and not side.free_symbols and not side.atoms(AppliedUndef)]
    if any(not _equal(last, number, answer.text) for number in numbers):
        return True
    begun = answer.before.rstrip() + ("=" if answer.text.startswith("=") else "")
    left = begun[:-1] if begun.endswith("=") and not answer.in_box else ""
    plain = _PLAIN_EQUATION.search(left)
    if plain is None or re.search(r"[-+*/^×·÷%(]\s*$", left[: plain.start(1)]):
        return False
    return not verify(parse(plain[1], parsing_timeout=None), answer.values, timeout_seconds=None)


def _sides(value: object) -> list[object]:
    if isinstance(value, Eq):
        return [value.lhs, value.rhs]
    if isinstance(value, And):
        equations = [each for each in value._unsorted_args if isinstance(each, Eq)]
        return [side for each in equations for side in (each.lhs, each.rhs)]
    return []


def _equal(last: object, other: object, text: str) -> bool:
    """A decimal fraction may be the other side, rounded."""
    if verify([last], [other], timeout_seconds=None):
        return True
    decimals = re.search(r"\.(\d+)\D*$", text)
    if not isinstance(last, Float) or decimals is None:
        return False
    difference: Any = (last - other).evalf()
    return bool(difference.is_real) and abs(float(difference)) <= 0.500001 * 10.0 ** -len(decimals[1])


def _other_base(ground_truth: str, answer: FinalAnswer) -> bool:
    """101_2 is not 101_3. A base that one of the two leaves out is that of the other."""
    tail = "" if answer.in_box else answer.after[:12].split("\n")[0]
    right, given = _bases(ground_truth), _bases(answer.text + tail)
    return bool(right) and bool(given) and right != given


def _bases(text: str) -> set[int]:
    words = [(found[1] or found[2]).lower() for found in _BASE.finditer(text)]
    return {int(word) if word.isdigit() else _BASE_WORDS[word] for word in words if word.isdigit() or word in _BASE_WORDS}


def _remark(ground_truth: str, text: str) -> bool:
    known = _words(ground_truth)
    for found in _TEXT.finditer(text):
        words = _words(found[1]) - known
        behind = text[: found.start()].strip(" \\,{(") != ""
        if words & _CLAIMS or (behind and (words & _MORE_WORDS or _has_number(found[1]))):
            return True
    return False


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower()))


def _has_number(unit: str) -> bool:
    """True if the text has a number beyond exponents (cm2, m^2) and "base 10"."""
    return bool(re.search(r"(?<![A-Za-z^\d])\d", re.sub(r"base\s*\d+", "", unit)))


def _more_values(ground_truth: str, text: str) -> bool:
    """Finds text behind a value, which math-verify drops: nothing but units and exponents may stand there."""
    return _dropped(text) and not _dropped(ground_truth)


def _dropped(text: str) -> bool:
    joined = _JOINING.sub(",", text)
    first = _TEXT.search(joined)
    if first is None or not joined[: first.start()].strip() or "," in joined or "=" in joined[: first.start()][-2:]:
        return False
    if re.search(r"[=,;<>]", joined[first.end() :]):
        return False
    rest = re.sub(r"\^\s*(?:\{\s*-?\d+\s*\}|-?\d)", "", _TEXT.sub("", joined[first.end() :]))
    rest = re.sub(r"\\(?:cdot|per|,|;|!|:|\s|%|\$)|/\s*(?=$|\\)", "", rest)
    return bool(re.search(r"[0-9+*/-]|\\times|\\div", rest))


def _repeats(gold: object, value: object) -> bool:
    """Finds repeated members: 1, 2, 1, 2 is not the set of 1 and 2, unless the ground truth lists a member twice itself."""
    return _doubles(value) > _doubles(gold)


def _doubles(value: object) -> int:
    listed = list(getattr(value, "_unsorted_args", ())) if type(value).__name__ == "FiniteSet" else []
    return len(listed) - len(set(listed))
