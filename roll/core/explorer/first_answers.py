"""Agents that never get an answer: a program whose calls are all refused, or that fails before it asks, fares no better in the
next group. So the run ends with the cause, as long as no group of the tag has had an answer; later such groups are dropped."""

from __future__ import annotations

from collections import Counter

from roll.core.errors import REFUSED, NoProgress
from roll.core.explorer.group_play import GroupOutcome

ENOUGH = 10
"""Groups that fail of one cause, which may be that of some tasks; one whose calls the run itself refuses is enough."""


class FirstAnswers:
    def __init__(self) -> None:
        self._heard: set[str] = set()
        self._causes: Counter[tuple[str, str]] = Counter()

    def ended(self, tag: str, has_samples: bool, outcome: GroupOutcome) -> None:
        """Raises `NoProgress`."""
        if has_samples:
            self._heard.add(tag)
        if tag in self._heard or len(outcome.causes) != 1 or "" in outcome.causes:
            return
        (cause,) = outcome.causes
        self._causes[tag, cause] += 1
        if REFUSED in outcome.failures or self._causes[tag, cause] >= ENOUGH:
            raise NoProgress(f"no agent of {tag!r} has had an answer of the policy: {cause}")
