"""Actions read from the agent's text, and the instructions to write them: one object has both, so that instructions match
the reading. A text without a readable action is no error: its cost is said where the turn is played (`text_game`).

An action is the name of one of a few, a number, a text, or JSON, as the action space says (`space_text`)."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gymnasium import spaces

from roll.core.configs.problems import ConfigError, Problem
from roll.envs.action_pattern import ANSWER_PATTERN, WHOLE_TEXT, compiled, found_in
from roll.envs.space_text import described, example, member, plain, text_wanted

MOST_NAMES = 1000
MOST_TOLD = 20
"""Numbers that are names and no more than these are told one by one."""


class Language(Protocol):
    """The text between the marks of the pattern, and the action that it means."""

    asked: str

    def read(self, words: str) -> Any:
        """The action, or None."""

    def write(self, action: Any) -> str: ...

    def example(self) -> str: ...

    def draw(self, rng: random.Random) -> Any:
        """Any action."""


class Names:
    """One of a few actions, by its name. Upper and lower case are the same."""

    def __init__(self, space: spaces.Discrete, names: Sequence[str] | None, lookup: Mapping[str, str] | None) -> None:
        """`lookup`: what the agent writes -> name of an action; without it, the names themselves. Raises `ConfigError`."""
        self._first, count = int(space.start), int(space.n)
        numbers = [str(self._first + i) for i in range(count)]
        self.names = numbers if names is None else _checked_names(names, count)
        self._lookup = {name.casefold(): i for i, name in enumerate(self.names)}
        self.words = list(self.names)
        """Words that the agent may write."""
        if lookup is not None:
            unknown = [name for name in lookup.values() if name.casefold() not in self._lookup]
            if unknown or not lookup:
                among = ", ".join(self.names)
                raise ConfigError(
                    [
                        Problem(
                            "action_lookup",
                            dict(lookup),
                            f"its values must be among {among}",
                            f"e.g. {{{self.names[0]}: {self.names[0]}}}",
                        )
                    ]
                )
            self._lookup = {word.casefold(): self._lookup[name.casefold()] for word, name in lookup.items()}
            self.words = list(lookup)
        told = self.words != numbers or count <= MOST_TOLD
        self.asked = f"Choose one action: {', '.join(self.words)}." if told else f"Choose {described(space)}."

    def read(self, words: str) -> int | None:
        found = self._lookup.get(words.strip().casefold())
        return None if found is None else self._first + found

    def write(self, action: Any) -> str:
        return next((word for word in self.words if self._lookup[word.casefold()] == int(action) - self._first), "")

    def example(self) -> str:
        return self.words[0]

    def draw(self, rng: random.Random) -> int:
        """One that has a word: a lookup may leave some out."""
        return self._first + self._lookup[self.words[rng.randrange(len(self.words))].casefold()]


class _Drawn:
    """An action space whose members cannot be counted."""

    def __init__(self, space: Any) -> None:
        self._space = space

    def draw(self, rng: random.Random) -> Any:
        self._space.seed(rng.getrandbits(31))
        return self._space.sample()


class Words(_Drawn):
    """A free text: as it stands, or else without the white space around it."""

    def __init__(self, space: spaces.Text) -> None:
        super().__init__(space)
        self.asked = f"Write {text_wanted(space)}."

    def read(self, words: str) -> str | None:
        return next((text for text in (words, words.strip()) if self._space.contains(text)), None)

    def write(self, action: Any) -> str:
        return str(action)

    def example(self) -> str:
        return "..."


class Json(_Drawn):
    def __init__(self, space: Any) -> None:
        super().__init__(space)
        self.asked = f"Your action is JSON: {described(space)}."

    def read(self, words: str) -> Any:
        try:
            return member(self._space, json.loads(words))
        except (ValueError, RecursionError):
            return None

    def write(self, action: Any) -> str:
        return json.dumps(plain(self._space, action))

    def example(self) -> str:
        return json.dumps(example(self._space))


def _checked_names(names: Sequence[str], count: int) -> list[str]:
    """Raises `ConfigError`."""
    given = [str(name).strip() for name in names]
    fix = f"a name for each, e.g. [{', '.join(f'action_{i}' for i in range(min(count, MOST_TOLD)))}]"
    if len(given) != count:
        raise ConfigError([Problem("actions", list(names), f"has {len(given)} names; there are {count} actions", fix)])
    if "" in given or len({name.casefold() for name in given}) < count:
        raise ConfigError([Problem("actions", list(names), "two names are the same, or one is empty", fix)])
    return given


def _language(space: Any, names: Sequence[str] | None, lookup: Mapping[str, str] | None) -> Language:
    """Raises `ConfigError`."""
    if isinstance(space, spaces.Discrete) and (space.n <= MOST_NAMES or names is not None):
        return Names(space, names, lookup)
    for key, value in (("actions", names), ("action_lookup", lookup)):
        if value is not None:
            message = f"names single actions, and the action space is {space}"
            raise ConfigError([Problem(key, value, message, f"remove it: only a Discrete of at most {MOST_NAMES} has names")])
    return Words(space) if isinstance(space, spaces.Text) else Json(space)


class ActionReader:
    def __init__(
        self,
        space: Any,
        names: Sequence[str] | None = None,
        action_pattern: str | None = None,
        action_lookup: Mapping[str, str] | None = None,
    ) -> None:
        """`names`: of the actions of a Discrete, in its order. `action_pattern`: regular expression whose first group is the
        action; of several matches the last counts, as an agent may correct itself. `action_lookup`: see `Names`. Raises
        `ConfigError`."""
        self._language = _language(space, names, action_lookup)
        if action_pattern is None:
            action_pattern = WHOLE_TEXT if isinstance(space, spaces.Text) else ANSWER_PATTERN
        self._pattern = compiled(action_pattern)

    @property
    def words(self) -> list[str]:
        """Returns the words that the agent may write, where actions have names."""
        return list(getattr(self._language, "words", []))

    def read(self, text: str) -> Any:
        found = found_in(self._pattern, text)
        return None if found is None else self._language.read(found)

    def write(self, action: Any) -> str:
        """The text, in the form of the pattern, that `read` reads as the action."""
        return self._formed(self._language.write(action))

    def _formed(self, words: str) -> str:
        candidates = (_filled(self._pattern.pattern, words), words)
        return next((text for text in candidates if found_in(self._pattern, text) == words), words)

    def draw(self, rng: random.Random) -> Any:
        return self._language.draw(rng)

    @property
    def how_to_answer(self) -> str:
        """Text for instructions: what an agent may write, and its form."""
        words = self._language.example()
        text = self._formed(words)
        if text == words == "...":
            return self._language.asked
        form = f"like this: {text}" if found_in(self._pattern, text) == words else f"as the group of {self._pattern.pattern}"
        return f"{self._language.asked} Write it {form}"


def _filled(pattern: str, words: str) -> str:
    """The pattern with the words in the place of its first group, dots in the place of groups that do not capture: a text that
    matches, if the rest of the pattern is literal but for white space."""
    plain_text = re.sub(r"(?<!\\)\(\?:[^()]*\)", "...", pattern.removeprefix("^").removesuffix("$"))
    plain_text = re.sub(r"\\s[*+]", " ", plain_text)
    around = re.sub(r"(?<!\\)\([^()]*\)", "\0", plain_text, count=1)
    return re.sub(r"\\(\W)", r"\1", around).replace("\0", words)


def checked_penalty(format_penalty: float) -> float:
    """Raises `ConfigError` unless finite and <= 0: a positive one would pay for nonsense."""
    if not (math.isfinite(format_penalty) and format_penalty <= 0):
        raise ConfigError([Problem("format_penalty", format_penalty, "must be <= 0: it is added to the reward", "e.g. -0.1")])
    return float(format_penalty)
