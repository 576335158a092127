"""What the built-in environments have in common: how an action is read from the agent's text, and the games with a fixed list of
named actions: counting turns, filling `info`, the symbols that a grid is drawn with.

A text without a readable action changes nothing, is answered with the same observation and costs `format_penalty` (a number <= 0
that is added to the reward); the turn is spent. It never reaches a game, which writes `_begin`, `_move` and `_observe`."""

from __future__ import annotations

import math
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from roll.configs.problems import ConfigError, Problem, did_you_mean
from roll.rollout.environment import Reset, Step

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


@dataclass(frozen=True, slots=True)
class MoveOutcome:
    """The result of an action."""

    reward: float
    terminated: bool = False
    success: bool = False
    truncated: bool = False
    """The game itself was cut short; `max_steps` is counted here."""


class NamedActionGame(ABC):
    def __init__(self, rules: str, reader: ActionReader, max_steps: int) -> None:
        """`max_steps`: turns, unreadable ones included, after which an episode is truncated."""
        if max_steps < 1:
            raise ConfigError([Problem("max_steps", max_steps, "must be >= 1")])
        self.reader = reader
        self.max_steps = max_steps
        self.instructions = f"{rules}\n{reader.how_to_answer}"
        self._turns = 0
        self._over = True

    @abstractmethod
    def _begin(self, seed: int) -> None:
        """Puts the game into the first state that `seed` stands for."""

    @abstractmethod
    def _move(self, action: int) -> MoveOutcome:
        """Takes action number `action` of the reader's list."""

    @abstractmethod
    def _observe(self) -> str:
        """The state, as the agent sees it."""

    @abstractmethod
    def _state(self) -> Hashable:
        """The whole state, as a value with a short `repr`: equal exactly for states in which the same can happen."""

    @abstractmethod
    def _best_action(self) -> int | None:
        """An action that a good player would take now; None if there is no way to win any more, or none is known."""

    def reset(self, seed: int) -> Reset:
        self._begin(seed)
        self._turns = 0
        self._over = False
        return self._observe(), {"state_key": repr(self._state()), "suffix": self.reader.how_to_answer}

    def step(self, action_text: str) -> Step:
        """Raises `RuntimeError` if there is no episode under way."""
        if self._over:
            raise RuntimeError("step() outside an episode: call reset(seed) first")
        before = self._state()
        action = self.reader.read(action_text)
        outcome = MoveOutcome(self.reader.format_penalty) if action is None else self._move(action)
        self._turns += 1
        truncated = not outcome.terminated and (outcome.truncated or self._turns >= self.max_steps)
        self._over = outcome.terminated or truncated
        info = {
            "action_is_valid": action is not None,
            "action_is_effective": self._state() != before,
            "state_key": repr(self._state()),
            "suffix": self.reader.how_to_answer,
        }
        if self._over:
            info["success"] = outcome.success
        return self._observe(), outcome.reward, outcome.terminated, truncated, info

    def close(self) -> None:
        self._over = True

    def sample_action(self, rng: random.Random) -> str:
        """A text that names a random action."""
        return self.reader.write(rng.randrange(len(self.reader.actions)))

    def oracle_action(self) -> str | None:
        """A text that names a good player's action in the present state, or None."""
        best = self._best_action()
        return None if best is None else self.reader.write(best)


def checked_vocabulary(given: Mapping[str, str] | None, default: Mapping[str, str]) -> dict[str, str]:
    """`default` with what the user gave laid over it. Raises `ConfigError` unless every symbol is one character of its own:
    else two different states could look the same, or a row could be read in two ways."""
    problems = []
    for name, symbol in (given or {}).items():
        if name not in default:
            fix = did_you_mean(name, default, f"known: {', '.join(default)}")
            problems.append(Problem(f"grid_vocabulary.{name}", symbol, "is not a kind of square", fix))
        elif not isinstance(symbol, str) or len(symbol) != 1 or symbol in "\n\r":
            problems.append(Problem(f"grid_vocabulary.{name}", symbol, "must be one character"))
    symbols = {**default, **(given or {})}
    if not problems and len(set(symbols.values())) < len(symbols):
        problems.append(Problem("grid_vocabulary", dict(symbols), "two kinds of squares have the same symbol"))
    if problems:
        raise ConfigError(problems)
    return symbols
