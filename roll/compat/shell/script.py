"""The commands that a shell script comes to, with their words filled in. Nothing is run: assignments, arrays, `if` and `case` are
followed, and what depends on a command's outcome is unknown."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from roll.compat.shell.conditions import outcome
from roll.compat.shell.expansion import Expansion, Variables, unknown, unknown_in
from roll.compat.shell.words import Word, unread, words_of

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_SETTLED = ("true", ":", "echo", "set", "export", "shopt", "ulimit")
_OPENS = {"if": "fi", "case": "esac", "for": "done", "while": "done", "until": "done", "select": "done", "{": "}"}
_ENDS = {"then", "elif", "else", "fi", "do", "done", "esac", "}", ";;", ")"}
LONGEST_VALUE = 1 << 20
"""Characters of a variable."""
_AND_OR = ("&&", "||")


@dataclass(frozen=True, slots=True)
class Argument:
    text: str
    line: int


Command = tuple[Argument, ...]


def commands_of(text: str, path: str, environment: Mapping[str, str], wanted: Callable[[Command], bool]) -> list[Command]:
    """Returns the commands that are `wanted`, in order. `path`: the script's own. Raises `Fixable`."""
    variables: Variables = {**environment, "0": path, "BASH_SOURCE": [path]}
    run = _Run(wanted)
    try:
        run.block(_Words(words_of(text)), variables, "")
    except RecursionError:
        raise unread("is nested too deep", 1, "fewer levels of if, case and $(...), and no function that calls itself") from None
    return run.found


class _Words:
    def __init__(self, words: Sequence[Word]) -> None:
        self._words, self._at = words, 0

    @property
    def rest(self) -> Sequence[Word]:
        return self._words[self._at :]

    def peek(self) -> Word | None:
        return self._words[self._at] if self._at < len(self._words) else None

    def take(self) -> Word:
        if self._at == len(self._words):
            raise unread("ends inside if, case or a loop", self._words[-1].line, "mend the script: bash -n tells where")
        self._at += 1
        return self._words[self._at - 1]

    def skip(self, *texts: str) -> None:
        while (word := self.peek()) is not None and word.is_operator and word.text in texts:
            self._at += 1

    def until(self, *ends: str) -> _Words:
        """Returns the words of a list of commands, up to one of the words `ends` that belongs to it, which stays."""
        begin, open_ends, first = self._at, list[str](), True
        while (word := self.peek()) is not None:
            if word.text == "[[":  # && and || within are no ends
                while self.take().text != "]]":
                    pass
                first = False
                continue
            if first and not open_ends and word.text in ends:
                break
            if first and open_ends and word.text == open_ends[-1]:
                open_ends.pop()
            elif first and not word.is_operator and word.text in _OPENS:
                open_ends.append(_OPENS[word.text])
            elif word.is_operator and word.text in ends and not open_ends:
                break
            first = word.is_operator or word.text in ("then", "do", "else", "elif", "if", "while", "until", "!", "{", "in")
            self._at += 1
        return _Words(self._words[begin : self._at])


class _Run:
    def __init__(self, wanted: Callable[[Command], bool]) -> None:
        self._wanted, self.found = wanted, list[Command]()
        self._functions = dict[str, Sequence[Word]]()

    def block(self, words: _Words, variables: Variables, doubt: str) -> bool | None:
        """Returns the outcome of the last command. `doubt`: the reason why it is unknown whether these commands are run."""
        status: bool | None = True
        words.skip("\n", ";")
        while (word := words.peek()) is not None:
            if word.text in _OPENS and not word.is_operator:
                status = self._compound(words, variables, doubt)
            elif word.is_operator and word.text not in ("(", ")"):
                words.take()
            else:
                status = self._simple(self._command(words), variables, doubt)
            status = self._chained(words, status, variables, doubt)
            words.skip("\n", ";", "&")
        return status

    def _chained(self, words: _Words, status: bool | None, variables: Variables, doubt: str) -> bool | None:
        """Goes on behind `&&`, `||` and `|`."""
        while (sign := words.peek()) is not None and sign.is_operator and sign.text in (*_AND_OR, "|"):
            words.take()
            words.skip("\n")
            rest = words.until("\n", ";", "&", *_AND_OR, "|")
            if sign.text == "|":
                status = None
            elif status is None:
                self._perhaps([rest], variables, doubt or f"what stands before {sign.text} in line {sign.line}")
            elif status is (sign.text == "&&"):
                status = self.block(rest, variables, doubt)
        return status

    def _command(self, words: _Words) -> list[Word]:
        """Returns the words of a simple command. Round brackets, of functions and of shells within, are left out."""
        found = list[Word]()
        while (word := words.peek()) is not None and not (word.is_operator and word.text not in ("(", ")")):
            words.take()
            if word.text == "[[" and not found:
                return [word, *self._test(words)]
            if word.text == "{" and not word.is_operator and found:  # the body of a function, followed where it is called
                self._functions[found[-1].text] = words.until("}").rest
                words.take()
                return []
            found += [] if word.is_operator else [word]
        return found

    def _test(self, words: _Words) -> Iterator[Word]:
        """Yields the words up to `]]`, in which && and || are no ends."""
        while (word := words.take()).text != "]]":
            yield word
        yield word

    def _compound(self, words: _Words, variables: Variables, doubt: str) -> bool | None:
        opening = words.take()
        if opening.text == "if":
            return self._if(words, variables, doubt)
        if opening.text == "case":
            self._case(words, variables, doubt)
        elif opening.text == "{":
            status = self.block(words.until("}"), variables, doubt)
            words.take()
            return status
        else:
            words.until("do")
            words.take()
            body = words.until("done")
            words.take()
            self._perhaps([body], variables, doubt or f"the loop in line {opening.line}")
        return None

    def _if(self, words: _Words, variables: Variables, doubt: str) -> bool | None:
        branches, settled, status, why = list[_Words](), False, None, ""
        word = Word("if", 0)
        while word.text != "fi":
            if word.text in ("if", "elif"):
                condition = words.until("then")
                line = words.take().line
                body = words.until("elif", "else", "fi")
                if not settled and not branches:
                    holds = self.block(condition, variables, doubt)
                    settled = holds is True
                    if settled:
                        status = self.block(body, variables, doubt)
                    elif holds is None:
                        branches.append(body)
                        why = f"the condition in line {line}"
                elif branches:
                    branches.append(body)
            else:
                body = words.until("fi")
                if branches:
                    branches.append(body)
                elif not settled:
                    status = self.block(body, variables, doubt)
            word = words.take()
        if branches:
            self._perhaps(branches, variables, doubt or why)
        return status

    def _case(self, words: _Words, variables: Variables, doubt: str) -> None:
        subject = words.take()
        value = Expansion(variables, unset="").text(subject.text)
        words.skip("\n")
        words.take()  # in
        words.skip("\n")
        branches, done = list[_Words](), False
        while words.peek() is not None and words.peek().text != "esac":  # type: ignore[union-attr]
            words.skip("(")
            patterns = list[str]()
            while not (word := words.take()).is_operator or word.text != ")":
                patterns += [] if word.is_operator else [Expansion(variables, unset="").text(word.text)]
            body = words.until(";;", "esac")
            words.skip(";;", "\n")
            if unknown_in(value):
                branches.append(body)
            elif not done and any(fnmatchcase(value, pattern) for pattern in patterns):
                done = True
                self.block(body, variables, doubt)
        words.take()
        if branches:
            self._perhaps(
                branches, variables, doubt or f"{subject.text.strip(chr(34))} in line {subject.line}: {unknown_in(value)}"
            )

    def _perhaps(self, branches: Sequence[_Words], variables: Variables, doubt: str) -> None:
        """Follows commands of which it is unknown whether they are run: what they change becomes unknown."""
        ends = [copy.deepcopy(variables) for _ in branches]
        for branch, end in zip(branches, ends, strict=True):
            self.block(branch, end, doubt)
        for name in {name for end in ends for name in end}:
            if any(end.get(name) != variables.get(name) for end in ends):
                variables[name] = unknown(f"{name} depends on {doubt}, which is not known here")

    def _simple(self, words: list[Word], variables: Variables, doubt: str) -> bool | None:
        if not words:
            return True
        if words[0].text == "!":
            status = self._simple(words[1:], variables, doubt)
            return None if status is None else not status
        if words[0].text in ("[", "[[", "test"):
            inside = words[1:] if words[0].text == "test" else words[1:-1]
            expansion = Expansion(variables, unset="")
            said = [each.text if each.is_operator else expansion.text(each.text) for each in inside]
            return outcome(said, words[0].text == "[[")
        if (body := self._functions.get(words[0].text)) is not None:
            return self.block(_Words(body), variables, doubt)
        named = words[1:] if words[0].text in _DECLARES else words
        while named and (_assign(named[0], variables) or (words[0].text in _DECLARES and named[0].text.startswith("-"))):
            named = named[1:]
        if not named or words[0].text in _DECLARES:
            return True
        if re.match(r"[+~]*\w+(\.\w+)+=", named[0].text):
            message = f"{named[0].text} stands alone: the command's line has ended before it"
            raise unread(message, named[0].line, "a backslash as the last character of the line above")
        command = tuple(Argument(field, word.line) for word in named for field in Expansion(variables).fields(word.text))
        if self._wanted(command):
            if doubt:
                raise unread(f"whether the command is run depends on {doubt}", named[0].line, "give what it asks for a value")
            self.found.append(command)
        return True if command and command[0].text in _SETTLED else False if command[:1] and command[0].text == "false" else None


def _assign(word: Word, variables: Variables) -> bool:
    found = _ASSIGNMENT.fullmatch(word.text)
    if found is None:
        return False
    name, adds, written = found.groups()
    old = variables.get(name, [] if word.items is not None else "")
    new: str | list[str]
    if word.items is not None:
        new = [field for each in word.items for field in Expansion(variables).fields(each.text)]
        new = [*(old if isinstance(old, list) else [old]), *new] if adds else new
    else:
        new = Expansion(variables).text(written)
        new = (old if isinstance(old, str) else " ".join(old)) + new if adds else new
    if sum(map(len, new)) > LONGEST_VALUE:
        raise unread(f"{name} has more than {LONGEST_VALUE:,} characters", word.line, "a shorter value")
    variables[name] = new
    return True
