"""Milestones of the trainer: the progress of each step, and if the weights are those of a whole step."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from roll.core.errors import Closed
from roll.core.groups.groups import Groups


class Milestone(StrEnum):
    """Milestones of a step, in words for people: "step 3 is trained and written down"."""

    BEGUN = "begun"
    """Its weights change."""
    CRITIC_UPDATED = "learnt by the critic"
    RECORDED = "trained and counted"
    GATHERED = "gathered as weights"
    DONE = "trained and written down"


class Milestones:
    def __init__(self, groups: Groups, first_step: int) -> None:
        """`first_step`: steps that are done already."""
        self._groups = groups
        self._behind = Counter(dict.fromkeys(Milestone, first_step))
        """Number of steps that have reached that milestone."""

    def passed(self, milestone: Milestone, count: int) -> None:
        """By `count` steps."""
        self._behind[milestone] = max(self._behind[milestone], count)
        self._groups.changes.notify()

    @property
    def whole(self) -> bool:
        """True if weights, optimiser and accounts are those between two steps: only then they are worth a checkpoint."""
        return self._behind[Milestone.RECORDED] == self._behind[Milestone.BEGUN]

    @property
    def begun(self) -> int:
        return self._behind[Milestone.BEGUN]

    async def until(self, milestone: Milestone, count: int, stage: str, even_stopped: bool = False) -> None:
        """Waits until that many steps have passed the milestone. `stage`: the waiting stage. Raises `Closed` if the run stops
        before, unless the wait goes on `even_stopped`."""
        groups, named = self._groups, f"step {count} is {milestone}"
        ends = not even_stopped
        await groups.until(lambda: (ends and groups.stopped) or self._behind[milestone] >= count, stage, named)
        if self._behind[milestone] < count:
            raise Closed
