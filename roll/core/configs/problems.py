"""Reports on the keys of a configuration: all problems together, one line each, and the outcome of every key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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
