"""A warning of an agent that does not write its environment's actions, once a tag, with one of its texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from roll.core.data.sample import SampleGroup
from roll.core.record.callbacks import Callback
from roll.reports.verdict import FEW_VALID
from roll.reports.warnings import Warnings

FEWEST = 32
"""Actions of a tag of which that can be said."""
LONGEST = 160
"""Characters of the quoted text."""


@dataclass(slots=True)
class _Counted:
    actions: int = 0
    valid: int = 0
    example: str | None = None
    """The last that was not valid."""
    told: bool = False


class InvalidActions(Callback):
    """Counts the actions of all groups that were played, whether they were trained or dropped."""

    def __init__(self, asked: Mapping[str, str], warnings: Warnings) -> None:
        """`asked`: tag -> the rules of its environments, which end with what to write."""
        self._asked, self._warnings = asked, warnings
        self._tags: dict[str, _Counted] = {}

    def on_group(self, group: SampleGroup, reason: str | None) -> None:
        counted, tag = self._tags.setdefault(group.prompt.tag, _Counted()), group.prompt.tag
        for sample in group.samples:
            for turn in sample.trajectory.turns if sample.trajectory is not None else ():
                counted.actions += 1
                counted.valid += turn.is_valid
                counted.example = counted.example if turn.is_valid else turn.action
        if not counted.told and counted.actions >= FEWEST and counted.valid < FEW_VALID * counted.actions:
            counted.told = True
            rules = [line for line in self._asked.get(tag, "").splitlines() if line.strip()]
            wanted = f"; wanted: {_short(rules[-1])}" if rules else ""
            found = f"{counted.valid} of the first {counted.actions:,} actions are valid"
            example = f"the last one that is not: {_short(counted.example or '')!r}{wanted}"
            where = "roll check shows the first prompt, samples.jsonl has the texts"
            self._warnings.add(f"custom_envs.{tag}: {found}; {example} ({where})")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
