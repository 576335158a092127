"""Reads an action from the agent's text, and defines what a text without an action costs.

The rule of all built-in environments: a text without a readable action changes nothing, is answered with the same observation
and costs `format_penalty` (a number <= 0 that is added to the reward); the turn is spent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from roll.configs.problems import ConfigError, Problem

ANSWER_PATTERN = r"<answer>(.*?)</answer>"
"""The default: the agent may think aloud, the answer is between the tags."""
LONGEST_TEXT = 1 << 16
"""Characters that are searched, from the end. A user's pattern need not be safe against texts without end."""


class ActionReader:
    def __init__(
        self,
        actions: Sequence[str],
        action_pattern: str = ANSWER_PATTERN,
        action_lookup: Mapping[str, str] | None = None,
        format_penalty: float = 0.0,
    ) -> None:
        """`actions`: the names of the game's actions. `action_pattern`: regular expression whose first group is the action; of
        several matches the last counts, as an agent may correct itself. `action_lookup`: what the agent writes -> name of an
        action; without it, the names themselves. Upper and lower case are the same. Raises `ConfigError`."""
        self.actions = list(actions)
        self.format_penalty = checked_penalty(format_penalty)
        self._pattern = compiled(action_pattern)
        self._lookup = {name.casefold(): i for i, name in enumerate(self.actions)}
        self.words = list(self.actions)
        """What the agent may write."""
        if action_lookup is not None:
            unknown = {word: name for word, name in action_lookup.items() if name.casefold() not in self._lookup}
            if unknown or not action_lookup:
                names = ", ".join(self.actions)
                raise ConfigError([Problem("action_lookup", dict(action_lookup), f"its values must be among {names}")])
            self._lookup = {word.casefold(): self._lookup[name.casefold()] for word, name in action_lookup.items()}
            self.words = list(action_lookup)

    def read(self, text: str) -> int | None:
        """Index of the action among `actions`, or None."""
        found = last_match(self._pattern, text)
        return None if found is None else self._lookup.get(found.strip().casefold())

    def write(self, action: int) -> str:
        """The text, in the form of the pattern, that `read` reads as the action."""
        word = next(word for word in self.words if self._lookup[word.casefold()] == action)
        candidates = (_filled(self._pattern.pattern, word), word)
        return next((text for text in candidates if self.read(text) == action), word)

    @property
    def how_to_answer(self) -> str:
        """Text for instructions: the words that an agent may write, and their form."""
        action = self._lookup[self.words[0].casefold()]
        example = self.write(action)
        form = f"like this: {example}" if self.read(example) == action else f"as the group of {self._pattern.pattern}"
        return f"Choose one action: {', '.join(self.words)}. Write it {form}"


def compiled(pattern: str, key: str = "action_pattern") -> re.Pattern[str]:
    """A user's action pattern. Raises `ConfigError`."""
    try:
        expression = re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise ConfigError([Problem(key, pattern, f"is not a regular expression: {error}")]) from None
    if expression.groups < 1:
        raise ConfigError([Problem(key, pattern, "has no group", f"write the action in brackets: {ANSWER_PATTERN}")])
    return expression


def last_match(pattern: re.Pattern[str], text: str) -> str | None:
    """The first group of the last match, or None. The empty match that `(.*)` finds at the end of every text does not count."""
    found: str | None = None
    for match in pattern.finditer(text[-LONGEST_TEXT:]):
        if match.end() > match.start():
            found = match.group(1)
    return found


def _filled(pattern: str, word: str) -> str:
    """The pattern with the word in the place of its first group, dots in the place of groups that do not capture: a text that
    matches, if the rest of the pattern is literal but for white space."""
    plain = re.sub(r"(?<!\\)\(\?:[^()]*\)", "...", pattern.removeprefix("^").removesuffix("$"))
    plain = re.sub(r"\\s[*+]", " ", plain)
    around = re.sub(r"(?<!\\)\([^()]*\)", "\0", plain, count=1)
    return re.sub(r"\\(\W)", r"\1", around).replace("\0", word)


def checked_penalty(format_penalty: float) -> float:
    """Raises `ConfigError` unless finite and <= 0: a positive one would pay for nonsense."""
    if not (math.isfinite(format_penalty) and format_penalty <= 0):
        raise ConfigError([Problem("format_penalty", format_penalty, "must be <= 0: it is added to the reward")])
    return float(format_penalty)
