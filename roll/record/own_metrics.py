"""The metrics that callbacks add to those of a step or a validation."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from roll.configs.validation import OF_EVERY_RUN, OF_SOME_RUNS

logger = logging.getLogger(__name__)

TAKEN = ("step", *OF_EVERY_RUN, *(pattern for patterns in OF_SOME_RUNS.values() for pattern in patterns))


class OwnMetrics:
    def __init__(self) -> None:
        self._told: set[tuple[str, object]] = set()

    def added(self, who: str, before: Mapping[str, float], after: Mapping[str, object]) -> dict[str, float]:
        """The numbers that are new. A name of the run's, and what is no number, is left out, with a warning the first time."""
        found: dict[str, float] = {}
        for name, value in after.items():
            if isinstance(name, str) and name in before and value is before[name]:
                continue
            if why := "".join(_flaws(name, before)) or _no_number(value):
                self._tell(who, name, why)
            elif isinstance(name, str):
                found[name] = float(value)  # type: ignore[arg-type]
        for name in before.keys() - after.keys():
            self._tell(who, name, "is the run's, and is not taken out")
        return found

    def _tell(self, who: str, name: object, why: str) -> None:
        if (who, name) not in self._told:
            self._told.add((who, name))
            logger.warning("%s: the metric %.100r %s: it is left out (said once)", who, name, why)


def _flaws(name: object, before: Mapping[str, float]) -> Iterator[str]:
    if not isinstance(name, str) or not name or "\0" in name or name != name.strip():
        yield "has no name that can be written"
    elif name in before or any(fnmatchcase(name, pattern) for pattern in TAKEN):
        yield "is the run's own, give yours another name"


def _no_number(value: object) -> str:
    if isinstance(value, str | bytes | bytearray):
        return f"is a text, {value!r:.100}, not a number"
    try:
        float(value)  # type: ignore[arg-type]
    except Exception as error:  # boundary: of a user's object
        return f"is no number, but {type(value).__name__} ({error})"
    return ""
