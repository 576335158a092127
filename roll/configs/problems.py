"""What is said of the keys of a configuration: problems, one line per problem, all of them together; what became of each."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from roll.configs.redact import redact_at, redact_text, visible

MISSING_VALUE = "(missing)"


@dataclass(frozen=True, slots=True)
class Problem:
    key: str
    """Dotted path of the key in the YAML, e.g. `actor_train.training_args.learning_rate`."""
    value: object
    """What the user wrote, or `MISSING_VALUE`."""
    message: str
    """The rule that is broken, with its arithmetic."""
    fix: str = ""
    """What to write instead."""
    where: str = ""
    """`file:line` of the key, or "command line"; empty if unknown."""

    def __str__(self) -> str:
        """One line, without secrets and without control characters, whatever the user's file brought."""
        place = f"{self.where}: " if self.where else ""
        fix = f"; fix: {self.fix}" if self.fix else ""
        return visible(f"{place}{self.key} = {shown_value(self.key, self.value)}: {redact_text(self.message)}{fix}")


def shown_value(key: str, value: object, most: int = 80) -> str:
    """A value for a message: as Python writes it, cut, a path in its middle, and `***` if it is a secret."""
    if value is MISSING_VALUE:
        return "(missing)"
    shown = repr(redact_at(key, value))
    if len(shown) > most and isinstance(value, str) and "/" in value:  # the end of a path says most
        return f"{shown[: most // 4]}...{shown[most // 4 + 3 - most :]}"
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", cutoff: float = 0.6) -> str:
    """The question for the known name that is spelt most like this one; `otherwise` if none is alike."""
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"did you mean {nearest[0]}?" if nearest else otherwise


class ConfigError(ValueError):
    """A configuration that cannot run. `problems` holds every problem found, the message one line for each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


@dataclass(frozen=True, slots=True)
class Note:
    """One remark about one key."""

    key: str
    """Dotted path of the key as it was written."""
    value: object
    message: str
    where: str = ""
    """`file:line`, or "command line"; empty if unknown."""
    told: bool = False
    """It changes what is trained: a run says it at its start."""

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return visible(f"{place}{self.key} = {shown_value(self.key, self.value, 60)}: {redact_text(self.message)}")


@dataclass(frozen=True, slots=True)
class LoadReport:
    """`lacking` and `unknown` are empty unless the file was loaded with `compat`: strictly, they are errors."""

    file: str = ""
    """The file that was read."""
    used: int = 0
    """Keys with a value that reached a field."""
    aliased: list[Note] = field(default_factory=list)
    """Read under this project's name or value; the message has both."""
    without_effect: list[Note] = field(default_factory=list)
    """Accepted and ignored; the message says why."""
    lacking: list[Note] = field(default_factory=list)
    """What ROLL has and this project has not: a run cannot start with it."""
    unknown: list[Note] = field(default_factory=list)
    """Neither a key of this project nor of ROLL."""
    variables: list[str] = field(default_factory=list)
    """Top-level keys that only feed `${...}`."""
    differences: list[Note] = field(default_factory=list)
    """Keys that mean something else than in ROLL; the value is this project's. All of them only with `compat`."""
    defaults: list[Note] = field(default_factory=list)
    """Keys left out whose default is not ROLL's, where that matters; the value is this project's. Only with `compat`."""
    derived: list[Note] = field(default_factory=list)
    """Keys left out whose value follows from model and data."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where each key was written."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Keys, and phrases with them, as the file's own framework has them."""

    @property
    def told(self) -> list[Note]:
        return [note for note in (*self.aliased, *self.without_effect, *self.differences, *self.derived) if note.told]

    @property
    def summary(self) -> str:
        """The report in one line; empty if every key was used as it stands."""
        counted = [
            (len(self.aliased), "read under another name or value"),
            (len(self.without_effect), "without effect"),
            (len(self.unknown), "unknown"),
            (len(self.differences), "with another meaning than in ROLL"),
            (len(self.defaults), "left out whose default is not ROLL's"),
        ]
        shown = ", ".join(f"{count} {what}" for count, what in counted if count)
        return f"{self.used} keys used, {shown} (roll check names them)" if shown else ""

    def located(self, problems: Iterable[Problem]) -> list[Problem]:
        """The problems with the place where their key, or the block around it, was written; of a key that is missing, also why
        its value does not follow from model and data."""
        why = {note.key: f"; it {note.message}" for note in self.derived if note.value == MISSING_VALUE}
        return [
            replace(
                self._reworded(problem),
                where=problem.where or origin(self.origins, problem.key),
                message=problem.message + (why.get(problem.key, "") if problem.value == MISSING_VALUE else ""),
            )
            for problem in problems
        ]

    def _reworded(self, problem: Problem) -> Problem:
        """In the words of who wrote the file."""
        if not self.words:
            return problem
        known = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, sorted(self.words, key=len, reverse=True)))})(?!\w|\.\w)")

        def said(text: str) -> str:
            return known.sub(lambda found: self.words[found.group()], text)

        return replace(problem, key=said(problem.key), message=said(problem.message), fix=said(problem.fix))


def origin(origins: Mapping[str, str], key: str) -> str:
    """The place where `key`, or the nearest block around it, was written; empty if unknown."""
    while key:
        if key in origins:
            return origins[key]
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    return ""


T = TypeVar("T")

OWN_CODE = "package.module.name, importable here (see PYTHONPATH)"
"""How to mend a name of a user's own code."""


class Collector:
    """Runs checks, and gathers what they complain about under the key that is to blame."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []

    def __call__(self, key: str, value: object, check: Callable[[], T], fix: str) -> T | None:
        """Runs the check and returns its value; None if the check complains. A `ConfigError` names its keys itself, and some
        errors their fix."""
        try:
            return check()
        except ConfigError as error:
            self._problems += error.problems
            return None
        except (ValueError, OSError) as error:
            message = " ".join(str(error).split())
            if isinstance(error, OSError) and error.strerror:
                message = f"{error.filename}: {error.strerror}"
            message = re.sub(rf"^{re.escape(str(value))}:(\d+): ", r"line \1: ", message.removeprefix(f"{key}: "))
            self._problems.append(Problem(key, value, message, getattr(error, "fix", "") or fix))
            return None

    def add(self, problems: Iterable[Problem]) -> None:
        self._problems += problems

    def raise_if_any(self) -> None:
        if self._problems:
            raise ConfigError(self._problems)
