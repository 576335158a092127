"""Outcome of loading a configuration: a report on each key."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import get_args, get_origin

from roll.core.configs.fields import hints
from roll.core.configs.problems import MISSING_VALUE, Note, Problem


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


def count_keys(cls: object, mapping: Mapping[str, object]) -> int:
    """Counts the keys of `mapping` that have a field of `cls`; for a block, counts the keys inside it instead."""
    count = 0
    for name in hints(cls).keys() & mapping.keys():
        hint, value = hints(cls)[name], mapping[name]
        block = next((member for member in (hint, *get_args(hint)) if is_dataclass(member)), None)
        if block is None or not isinstance(value, Mapping):
            count += 1
        else:
            entries = value.values() if get_origin(hint) is dict else [value]
            count += sum(count_keys(block, entry) for entry in entries if isinstance(entry, Mapping))
    return count
