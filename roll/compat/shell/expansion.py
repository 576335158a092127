"""What the words of a shell script stand for: variables, arrays, defaults, arithmetic. Nothing is run: of commands in `$(...)`
those that only name something (date, pwd, basename, dirname, echo) are computed, the others are unknown.

A text with an unknown part carries the reason with it, and is refused only where it is needed."""

from __future__ import annotations

import ast
import operator
import os
import re
import time
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase, translate
from typing import TypeAlias

from roll.compat.shell.words import after, unread, words_of

Variables: TypeAlias = dict[str, str | list[str]]
_MARK = "\0"
_NAME = re.compile(r"[A-Za-z_]\w*")
_BRACED = re.compile(r"(?P<length>#?)(?P<name>[A-Za-z_]\w*|[0-9@*#?$!])(?:\[(?P<index>[^\]]+)\])?(?P<rest>.*)", re.DOTALL)
_OR = re.compile(r"(?P<empty>:?)(?P<sign>[-=+?])(?P<word>.*)", re.DOTALL)
_CUT = re.compile(r"(?P<sign>##?|%%?)(?P<word>.*)", re.DOTALL)
_ARRAY = re.compile(r"\$@|\$\{@\}|\$\{\w+\[@\]\}")
_CASES: Mapping[str, Callable[[str], str]] = {"^^": str.upper, ",,": str.lower}
MOST_NESTED = 30


def unknown(why: str) -> str:
    return f"{_MARK}{why.replace(_MARK, '')}{_MARK}"


def unknown_in(text: str) -> str:
    """Returns the reason why a part of the text is unknown; empty if all is known."""
    found = re.search(f"{_MARK}([^{_MARK}]*){_MARK}", text)
    return found[1] if found else ""


class Expansion:
    def __init__(self, variables: Variables, unset: str | None = None, depth: int = 0) -> None:
        """`unset`: what a variable stands for that has no value; None: unknown."""
        self.variables, self._unset, self._depth = variables, unset, depth
        if depth > MOST_NESTED:
            raise unread(f"is nested more than {MOST_NESTED} levels deep", 0, "fewer levels")

    def fields(self, text: str) -> list[str]:
        """Returns the words that one written word becomes: none, or several by white space of a variable, or by an array."""
        parts = _Fields()
        at = 0
        while at < len(text):
            end = max(after(text, at), at + 1)
            piece = text[at:end]
            if piece[0] == "'":
                parts.add(piece[1:-1])
            elif piece[0] == '"':
                self._quoted(piece[1:-1], parts)
            elif piece[0] == "\\":
                parts.add(piece[1:].strip("\n"))
            elif piece[0] in "$`":
                values, end = self._dollar(text, at, end)
                parts.split(values)
            else:
                parts.add(piece)
            at = end
        return parts.done()

    def text(self, text: str) -> str:
        """Returns what a word stands for where it is one word, as behind `=`."""
        return " ".join(self.fields(text)) if _has_array(text) else "".join(self._pieces(text))

    def _pieces(self, text: str) -> list[str]:
        pieces, at = list[str](), 0
        while at < len(text):
            end = max(after(text, at), at + 1)
            piece = text[at:end]
            if piece[0] == '"':
                pieces.append(self.text_in_quotes(piece[1:-1]))
            elif piece[0] in "$`":
                values, end = self._dollar(text, at, end)
                pieces.append(" ".join(values))
            else:
                pieces.append(piece[1:-1] if piece[0] == "'" else piece[1:].strip("\n") if piece[0] == "\\" else piece)
            at = end
        return pieces

    def text_in_quotes(self, text: str) -> str:
        parts = _Fields()
        self._quoted(text, parts)
        return " ".join(parts.done())

    def _quoted(self, text: str, parts: _Fields) -> None:
        if not _ARRAY.fullmatch(text):  # which may have no words at all
            parts.add("")
        at = 0
        while at < len(text):
            end = at + 1
            if text[at] == "\\" and text[at + 1 : at + 2] in ("$", "`", '"', "\\", "\n"):
                parts.add(text[at + 1].strip("\n"))
                end = at + 2
            elif text[at] in "$`":
                values, end = self._dollar(text, at, max(after(text, at), at + 1))
                parts.join(values)
            else:
                parts.add(text[at])
            at = end

    def _dollar(self, text: str, at: int, end: int) -> tuple[list[str], int]:
        """Returns the values of what begins with `$`, and the place behind it. `end`: of a bracketed form."""
        if text[at] == "`":
            return [self._command(text[at + 1 : end - 1])], end
        if text.startswith("$((", at) and text[end - 2 : end] == "))":
            return [self.arithmetic(text[at + 3 : end - 2])], end
        if text.startswith("$(", at):
            return [self._command(text[at + 2 : end - 1])], end
        if text.startswith("${", at):
            return self._braced(text[at + 2 : end - 1]), end
        if name := _NAME.match(text, at + 1):
            return self._braced(name[0]), name.end()
        if text[at + 1 : at + 2] in tuple("0123456789@*#?$!"):
            return self._braced(text[at + 1]), at + 2
        return ["$"], at + 1

    def _braced(self, inner: str) -> list[str]:
        found = _BRACED.fullmatch(inner)
        if found is None:
            return [unknown(f"${{{inner}}}")]
        name, rest = found["name"], found["rest"]
        if name in "@*":
            return []
        value = "0" if name == "#" else self.variables.get(name)
        if value is not None and found["index"]:
            value = self._item(value, found["index"])
        if found["length"] and not rest and value is not None:
            return [str(len(value))]
        if not rest:
            return self._values(value, inner)
        return self._with_operator(name, value, inner, rest)

    def _item(self, value: str | list[str], index: str) -> str | list[str] | None:
        listed = value if isinstance(value, list) else [value]
        if index in "@*":
            return listed
        number = self.arithmetic(index)
        return listed[int(number)] if number.lstrip("-").isdigit() and -len(listed) <= int(number) < len(listed) else None

    def _values(self, value: str | list[str] | None, inner: str) -> list[str]:
        if value is None:
            return [unknown(f"the variable {inner} has no value") if self._unset is None else self._unset]
        return list(value) if isinstance(value, list) else [value]

    def _with_operator(self, name: str, value: str | list[str] | None, inner: str, rest: str) -> list[str]:
        if choice := _OR.fullmatch(rest):
            there = value is not None and not (choice["empty"] and value in ("", []))
            word = choice["word"]
            if choice["sign"] == "+":
                return self._deeper().fields(f'"{word}"') if there else []
            if there:
                return self._values(value, inner)
            if choice["sign"] == "?":
                return [unknown(f"the variable {name} has no value")]
            chosen = self._deeper().text(word)
            if choice["sign"] == "=":
                self.variables[name] = chosen
            return [chosen]
        text = " ".join(self._values(value, name))
        if rest in _CASES:
            return [_CASES[rest](text)]
        if cut := _CUT.fullmatch(rest):
            return [_cut(text, cut["sign"], self._deeper().text(cut["word"]))]
        if rest.startswith("/"):
            pattern, _, new = rest.lstrip("/").partition("/")
            pattern, new = self._deeper().text(pattern), self._deeper().text(new)
            return [re.sub(translate(pattern).removesuffix(r"\Z"), lambda _: new, text, count=0 if rest.startswith("//") else 1)]
        return [unknown(f"${{{inner}}}")]

    def _deeper(self) -> Expansion:
        return Expansion(self.variables, self._unset, self._depth + 1)

    def _command(self, text: str) -> str:
        """Returns the answer of a command that only names something; of any other that it is unknown."""
        words = [word for word in words_of(text) if word.text != "--"]
        given = [field for word in words for field in self._deeper().fields(word.text)]
        name, rest = (given[0], given[1:]) if given and not any(word.is_operator for word in words) else ("", [])
        there = [word.text for word in words]
        if there[:1] == ["cd"] and there[2:] == ["&&", "pwd"]:
            return os.path.abspath(self._deeper().text(there[1]))
        if name == "date" and len(rest) <= 1 and all(each.startswith("+") for each in rest):
            return time.strftime(rest[0][1:] if rest else "%c")
        if name == "pwd" and not rest:
            return os.getcwd()
        if name == "echo" and rest:
            return " ".join(rest)
        if name in ("basename", "dirname") and len(rest) == 1:
            return getattr(os.path, name)(rest[0].rstrip("/")) or "."
        return unknown(f"$({text.strip()}) is a command, and none is run here")

    def arithmetic(self, text: str) -> str:
        """Returns the value of whole numbers and variables; unknown if there is anything else in it."""
        known = self._deeper().text(text)
        for _ in range(MOST_NESTED):  # a variable may name another
            if unknown_in(known) or not (name := _NAME.search(known)):
                break
            value = self.variables.get(name[0], "0")
            known = known.replace(name[0], f"({value if isinstance(value, str) else ' '.join(value)})", 1)
        try:
            return known if unknown_in(known) else str(_number(ast.parse(known.strip() or "0", mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, OverflowError):
            return unknown(f"$(({text.strip()})) is no sum of whole numbers")


def _quotient(one: int, other: int) -> int:
    """Rounded towards 0, as the shell does."""
    return abs(one) // abs(other) * (1 if (one < 0) == (other < 0) else -1)


_ARITHMETIC: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: _quotient,
    ast.Mod: lambda one, other: one - other * _quotient(one, other),
    ast.Gt: operator.gt, ast.Lt: operator.lt, ast.GtE: operator.ge, ast.LtE: operator.le,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


LARGEST_NUMBER = (1 << 63) - 1


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value <= LARGEST_NUMBER:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        value = _ARITHMETIC[type(node.op)](_number(node.left), _number(node.right))
        if abs(value) <= LARGEST_NUMBER:
            return value
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _ARITHMETIC:
        return int(_ARITHMETIC[type(node.ops[0])](_number(node.left), _number(node.comparators[0])))
    raise ValueError


def _has_array(text: str) -> bool:
    return "[@]}" in text or "$@" in text


def _cut(text: str, sign: str, pattern: str) -> str:
    """Returns the text without the shortest (`#`, `%`) or longest (`##`, `%%`) beginning or end that fits the pattern."""
    places = range(len(text) + 1)
    if sign[0] == "#":
        fits = [at for at in places if fnmatchcase(text[:at], pattern)]
        return text[(fits[-1] if len(sign) > 1 else fits[0]) :] if fits else text
    fits = [at for at in places if fnmatchcase(text[at:], pattern)]
    return text[: (fits[0] if len(sign) > 1 else fits[-1])] if fits else text


class _Fields:
    """Words in the making."""

    def __init__(self) -> None:
        self._done, self._open, self._begun = list[str](), "", False

    def add(self, text: str) -> None:
        self._open, self._begun = self._open + text, True

    def join(self, values: list[str]) -> None:
        """Adds values in quotes: the first goes on with the word, the last is gone on with."""
        for index, value in enumerate(values):
            if index:
                self._close()
            self.add(value)

    def split(self, values: list[str]) -> None:
        """Adds values without quotes: white space divides them."""
        text = " ".join(values)
        pieces = re.findall(f"(?:{_MARK}[^{_MARK}]*{_MARK}|\\S)+", text)
        if text[:1].isspace():
            self._close()
        self.join(pieces)
        if text[-1:].isspace():
            self._close()

    def _close(self) -> None:
        if self._begun:
            self._done.append(self._open)
        self._open, self._begun = "", False

    def done(self) -> list[str]:
        self._close()
        return self._done
