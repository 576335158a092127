"""The words and operators of a shell script, with their lines. Quotes and `$` stay as written: `expansion` reads them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from roll.core.errors import Fixable


def unread(message: str, line: int, fix: str) -> Fixable:
    """Returns the error for shell text that cannot be read, or whose outcome is unknown. `line` 0: unknown."""
    return Fixable(f"line {line}: {message}" if line else message, fix)


@dataclass(frozen=True, slots=True)
class Word:
    text: str
    line: int
    is_operator: bool = False
    items: tuple[Word, ...] | None = None
    """The words of an array, behind `NAME=` or `NAME+=`."""


_OPERATORS = (";;", "&&", "||", ";", "|", "&", "(", ")", "\n")
_REDIRECTION = re.compile(r"&?[<>]+[&|-]?")
_HERE_DOCUMENT = re.compile(r"<<-?(?!<)\s*(['\"]?)(\w+)\1")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_BLANK = re.compile(r"(?:[ \t\r]|\\\r?\n)+")


def words_of(text: str) -> list[Word]:
    """Raises `Fixable`."""
    return list(_Reader(text).words(""))


class _Reader:
    def __init__(self, text: str) -> None:
        self._text, self._at, self._waiting = text, 0, list[str]()
        self._ends = [at for at, character in enumerate(text) if character == "\n"]

    def words(self, end: str) -> Iterator[Word]:
        """Yields words until `end`, which is read, too. Redirections are left out."""
        text, drops = self._text, False
        while self._at < len(text):
            if blank := _BLANK.match(text, self._at):
                self._at = blank.end()
            elif end and text.startswith(end, self._at):
                self._at += len(end)
                return
            elif text[self._at] == "#":
                self._at = self._line_end()
            elif here := _HERE_DOCUMENT.match(text, self._at):
                self._waiting.append(here[2])
                self._at = here.end()
            elif redirection := _REDIRECTION.match(text, self._at):
                self._at, drops = redirection.end(), True
            elif operator := next((each for each in _OPERATORS if text.startswith(each, self._at)), ""):
                yield Word(operator, self._line(), is_operator=True)
                self._at += len(operator)
                self._skip_documents(operator)
            else:
                word = self._word()
                number = word.text.isdigit() and text.startswith((">", "<"), self._at)  # 2>&1
                if not drops and not number:
                    yield word
                drops = False
        if end:
            raise unread(f"a '{end}' is missing", self._line(), "mend the script: bash -n tells where")

    def _line(self) -> int:
        return bisect_left(self._ends, self._at) + 1

    def _line_end(self) -> int:
        end = self._text.find("\n", self._at)
        return len(self._text) if end < 0 else end

    def _skip_documents(self, operator: str) -> None:
        while operator == "\n" and self._waiting:
            line = self._text[self._at : self._line_end()]
            self._at = min(self._line_end() + 1, len(self._text))
            if line.strip() == self._waiting[0] or self._at == len(self._text):
                self._waiting.pop(0)

    def _word(self) -> Word:
        begin, line = self._at, self._line()
        while self._at < len(self._text):
            here = self._text[self._at]
            if here == "(" and _ARRAY.fullmatch(name := self._text[begin : self._at]):
                self._at += 1
                items = tuple(each for each in self.words(")") if not each.is_operator)
                return Word(name, line, items=items)
            if here in " \t\r\n;|&()<>":
                break
            self._at = self._after(self._at)
        return Word(self._text[begin : self._at], line)

    def _after(self, at: int) -> int:
        end = after(self._text, at)
        if end < 0:
            self._at = at
            raise unread(f"{self._text[at : at + 2]!r} has no end", self._line(), "mend the script: bash -n tells where")
        return end


def after(text: str, at: int) -> int:
    """Returns the place behind the character, the quotation or the substitution that begins at `at`; -1 if it has no end."""
    here = text[at]
    if here == "\\":
        return at + 2
    if here == "'":
        return text.find("'", at + 1) + 1 or -1
    if here == "`":
        return text.find("`", at + 1) + 1 or -1
    if here == '"':
        return _closed(text, at + 1, '"', "")
    if text.startswith("${", at):
        return _closed(text, at + 2, "}", "{")
    if text.startswith("$(", at):
        return _closed(text, at + 2, ")", "(")
    return at + 1


def _closed(text: str, at: int, close: str, opens: str) -> int:
    """Returns the place behind the `close` that belongs to what stands before `at`."""
    quoted, depth = close == '"', 1
    while 0 <= at < len(text):
        if text[at] == close:
            depth -= 1
            at += 1
            if not depth:
                return at
        elif opens and text[at] == opens:
            depth, at = depth + 1, at + 1
        else:
            at = at + 1 if quoted and text[at] == "'" else after(text, at)
    return -1
