"""Reports on the keys of a configuration: all problems together, one line each, and the outcome of every key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from roll.core.configs.redact import redact_at, redact_text, visible

MISSING_VALUE = "(missing)"


@dataclass(frozen=True, slots=True)
class Problem:
    key: str
    """Dotted path of the key in the YAML, e.g. `actor_train.training_args.learning_rate`."""
    value: object
    """The user's value, or `MISSING_VALUE`."""
    message: str
    """The broken rule, with its arithmetic."""
    fix: str = ""
    """The value to write instead."""
    where: str = ""
    """`file:line` of the key, or "command line"; empty if unknown."""

    def __str__(self) -> str:
        """Returns one line without secrets and control characters, whatever the user's file has."""
        place = f"{self.where}: " if self.where else ""
        fix = f"; fix: {self.fix}" if self.fix else ""
        return visible(f"{place}{self.key} = {shown_value(self.key, self.value)}: {redact_text(self.message)}{fix}")


def shown_value(key: str, value: object, most: int = 80) -> str:
    """Returns a value for a message: its `repr`, shortened (a path in its middle), and `***` if it is a secret."""
    if value is MISSING_VALUE:
        return "(missing)"
    shown = repr(redact_at(key, value))
    if len(shown) > most and isinstance(value, str) and "/" in value:  # the end of a path says most
        return f"{shown[: most // 4]}...{shown[most // 4 + 3 - most :]}"
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", cutoff: float = 0.6) -> str:
    """Suggests the known name with the most similar spelling; returns `otherwise` if none is similar."""
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"did you mean {nearest[0]}?" if nearest else otherwise


class ConfigError(ValueError):
    """A configuration that cannot run. `problems` holds every problem found, the message one line for each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[list[Problem]]]:  # a worker raises it, too
        return type(self), (self.problems,)


@dataclass(frozen=True, slots=True)
class Note:
    """One remark about one key."""

    key: str
    """Dotted path of the key as written."""
    value: object
    message: str
    where: str = ""
    """`file:line`, or "command line"; empty if unknown."""
    told: bool = False
    """It changes the training; a run reports it at its start."""

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return visible(f"{place}{self.key} = {shown_value(self.key, self.value, 60)}: {redact_text(self.message)}")


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Outcome of loading a file. `lacking` and `unknown` are empty without `compat`, where such keys are errors."""

    file: str = ""
    """The file that was read."""
    used: int = 0
    """Keys with a value that reached a field."""
    aliased: list[Note] = field(default_factory=list)
    """Keys read under this project's name or value; the message has both."""
    without_effect: list[Note] = field(default_factory=list)
    """Accepted but ignored keys; the message has the reason."""
    lacking: list[Note] = field(default_factory=list)
    """Features of ROLL that this project lacks; a run cannot start with them."""
    unknown: list[Note] = field(default_factory=list)
    """Keys of neither this project nor ROLL."""
    variables: list[str] = field(default_factory=list)
    """Top-level keys that only feed `${...}`."""
    differences: list[Note] = field(default_factory=list)
    """Keys with another meaning than in ROLL; the value is this project's. All of them only with `compat`."""
    defaults: list[Note] = field(default_factory=list)
    """Keys left out whose default is not ROLL's, where that matters; the value is this project's. Only with `compat`."""
    derived: list[Note] = field(default_factory=list)
    """Keys left out whose value follows from model and data."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """The place of each key in its source."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Keys, and phrases with them, in the terms of the file's own framework."""

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
        """Adds to each problem the place of its key, or of the block around it; for a missing key also the reason that its value
        does not follow from model and data."""
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
        """Rewords a problem in the terms of the file's own framework."""
        if not self.words:
            return problem
        known = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, sorted(self.words, key=len, reverse=True)))})(?!\w|\.\w)")

        def said(text: str) -> str:
            return known.sub(lambda found: self.words[found.group()], text)

        return replace(problem, key=said(problem.key), message=said(problem.message), fix=said(problem.fix))


def origin(origins: Mapping[str, str], key: str) -> str:
    """Returns the place of `key`, or of the nearest block around it; empty if unknown."""
    while key:
        if key in origins:
            return origins[key]
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    return ""


T = TypeVar("T")

OWN_CODE = "package.module.name, importable here (see PYTHONPATH)"
"""The fix for a wrong path of a user's own code."""


class Collector:
    """Runs checks, and collects their errors under the offending key."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []

    def __call__(self, key: str, value: object, check: Callable[[], T], fix: str) -> T | None:
        """Runs the check and returns its value, or None if the check raises. A `ConfigError` names its own keys, and some errors
        their own fix."""
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
