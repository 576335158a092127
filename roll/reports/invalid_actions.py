"""A warning of an agent that does not write what its environment asks for, once a tag, with one of its texts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from roll.data.sample import SampleGroup
from roll.record.callbacks import Callback
from roll.record.run_progress import RunProgress
from roll.reports.verdict import FEW_VALID

logger = logging.getLogger(__name__)

FEWEST = 32
"""Actions of a tag of which that can be said."""
LONGEST = 160
"""Characters of what is quoted."""


@dataclass(slots=True)
class _Counted:
    actions: int = 0
    valid: int = 0
    example: str | None = None
    """The last that was not valid."""
    told: bool = False


class InvalidActions(Callback):
    """Counts the actions of all groups that were played, whether they were trained or dropped."""

    def __init__(self, asked: Mapping[str, str]) -> None:
        """`asked`: tag -> the rules of its environments, which end with what to write."""
        self._asked = asked
        self._tags: dict[str, _Counted] = {}
        self._found: list[str] = []

    def on_group(self, group: SampleGroup, reason: str | None) -> None:
        for line in self.observe([group]):
            self._found.append(line)
            logger.warning(line)

    def on_summary(self, summary: MutableMapping[str, Any], progress: RunProgress) -> None:
        summary["warnings"] += self._found

    def observe(self, groups: Iterable[SampleGroup]) -> list[str]:
        """Yields the news of these groups."""
        for group in groups:
            counted = self._tags.setdefault(group.prompt.tag, _Counted())
            for sample in group.samples:
                for turn in sample.trajectory.turns if sample.trajectory is not None else ():
                    counted.actions += 1
                    counted.valid += turn.is_valid
                    counted.example = counted.example if turn.is_valid else turn.action
        return list(self._told())

    def _told(self) -> Iterator[str]:
        for tag, counted in self._tags.items():
            if not counted.told and counted.actions >= FEWEST and counted.valid < FEW_VALID * counted.actions:
                counted.told = True
                rules = [line for line in self._asked.get(tag, "").splitlines() if line.strip()]
                wanted = f"; wanted: {_short(rules[-1])}" if rules else ""
                found = f"{counted.valid} of the first {counted.actions:,} actions are valid"
                example = f"the last one that is not: {_short(counted.example or '')!r}{wanted}"
                yield f"custom_envs.{tag}: {found}; {example} (roll check shows the first prompt, samples.jsonl has the texts)"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
