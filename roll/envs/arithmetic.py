"""The value of an arithmetic expression: digits, + - * / and brackets, exactly, as a fraction.

The text comes from a language model. It is never given to Python: this parser knows no names, calls, powers or attributes, and
the limits below bound its time and memory (a product of at most `LONGEST` digits has at most that many digits). So there is
nothing to lock away, and no sandbox process is needed.
"""

from __future__ import annotations

from fractions import Fraction

LONGEST = 200
"""Characters of an expression."""
DEEPEST = 30
"""Brackets and signs within each other."""


class ArithmeticProblem(ValueError):
    """The text has no value; the message says why, in words for the agent."""


def evaluate(text: str) -> Fraction:
    """Grammar: sum = product {(+|-) product}; product = factor {(*|/) factor}; factor = (+|-) factor | number | ( sum ); a number
    is digits with at most one point. Operators of equal rank group from the left. Raises `ArithmeticProblem`."""
    if len(text) > LONGEST:
        raise ArithmeticProblem(f"the expression has more than {LONGEST} characters")
    parser = _Parser(text)
    value = parser.sum(0)
    parser.expect_end()
    return value


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def sum(self, depth: int) -> Fraction:
        value = self.product(depth)
        while operator := self.take("+-"):
            right = self.product(depth)
            value = value + right if operator == "+" else value - right
        return value

    def product(self, depth: int) -> Fraction:
        value = self.factor(depth)
        while operator := self.take("*/"):
            right = self.factor(depth)
            if operator == "/" and right == 0:
                raise ArithmeticProblem("division by zero")
            value = value * right if operator == "*" else value / right
        return value

    def factor(self, depth: int) -> Fraction:
        if depth > DEEPEST:
            raise ArithmeticProblem(f"more than {DEEPEST} brackets or signs within each other")
        if sign := self.take("+-"):
            value = self.factor(depth + 1)
            return value if sign == "+" else -value
        if self.take("("):
            value = self.sum(depth + 1)
            if not self.take(")"):
                raise self.unexpected("a closing bracket")
            return value
        return self.number()

    def number(self) -> Fraction:
        self.skip_spaces()
        start = self.at
        while self.at < len(self.text) and self.text[self.at] in "0123456789.":
            self.at += 1
        literal = self.text[start : self.at]
        if not literal:
            raise self.unexpected("a number")
        if literal.count(".") > 1 or literal == ".":
            raise ArithmeticProblem(f"{literal} is no number")
        return Fraction(literal if not literal.startswith(".") else f"0{literal}")

    def take(self, symbols: str) -> str:
        """The next symbol if it is one of these, else ""."""
        self.skip_spaces()
        if self.at < len(self.text) and self.text[self.at] in symbols:
            self.at += 1
            return self.text[self.at - 1]
        return ""

    def skip_spaces(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
            self.at += 1

    def expect_end(self) -> None:
        self.skip_spaces()
        if self.at < len(self.text):
            raise self.unexpected("the end")

    def unexpected(self, expected: str) -> ArithmeticProblem:
        found = repr(self.text[self.at]) if self.at < len(self.text) else "the end"
        return ArithmeticProblem(f"expected {expected} at character {self.at + 1}, found {found}")
