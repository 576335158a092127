"""Reuse: the trained groups that may be trained again, and those that fill a batch. Pure; `Admission` has it, and the proof.

A group that started under version v is trained by up to `max_reuse` steps, the last of them v + ⌈α⌉ (its deadline) or before.
Those that were trained least often go first, of these the newest: less seen groups teach more, and newer ones are closer to
the policy. There are at most ⌈α⌉ · B of them: each was trained for the first time by one of the ⌈α⌉ steps before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from roll.core.errors import AccountingError


@dataclass(slots=True)
class Trained:
    """A group that was trained."""

    group_id: int
    start_version: int
    uses: int = 1
    """Number of steps that have trained it."""
    leased: bool = False
    """True if the trainer is about to train it again."""


class Reuse:
    def __init__(self, max_reuse: int, bound: int) -> None:
        """`bound`: ⌈α⌉."""
        self.max_reuse = max_reuse
        self.bound = bound
        self.done = 0
        """Uses of groups beyond their first."""
        self.under_way = 0
        """Number of reuses in steps that have their groups and are not trained yet."""
        self.groups: dict[int, Trained] = {}
        """Groups that may be trained again, or are leased for it."""

    def choose(self, count: int, step: int) -> list[int]:
        """Returns up to `count` groups that step `step` may train again."""
        usable = [group for group in self.groups.values() if not group.leased and group.start_version + self.bound >= step]
        best = nsmallest(count, usable, key=lambda group: (group.uses, -group.start_version, group.group_id))
        return [group.group_id for group in best]

    def oldest_after(self, step: int) -> int | None:
        """Returns the start version from which on a group may be trained again after `step`; None: no group is."""
        return step - self.bound if self.max_reuse > 1 else None

    def lease(self, group_ids: Iterable[int]) -> None:
        """Leases these groups to a step; those that it trains for the first time are ignored."""
        for group in [self.groups[group_id] for group_id in group_ids if group_id in self.groups]:
            group.leased = True
            self.under_way += 1

    def train(self, group_ids: Sequence[int]) -> None:
        """Counts the leased groups as trained again."""
        for group_id in group_ids:
            group = self.groups[group_id]
            if not group.leased:
                raise AccountingError(f"group {group_id} was trained again without a lease")
            group.leased = False
            group.uses += 1
        self.done += len(group_ids)
        self.under_way -= len(group_ids)

    def offer(self, trained: Iterable[Trained], next_step: int) -> None:
        """Adds `trained` and forgets groups that `next_step`, the next step to take groups, may not have."""
        known = {group.group_id: group for group in [*self.groups.values(), *trained]}
        self.groups = {group_id: group for group_id, group in known.items() if group.leased or self._may_have(group, next_step)}

    def retire(self, group_id: int) -> None:
        """Forgets a group that is not trained again."""
        del self.groups[group_id]

    def restore(self, done: int, trained: Iterable[Trained], next_step: int) -> None:
        """`trained`: the trained groups whose samples are there."""
        self.done, self.under_way, self.groups = done, 0, {}
        self.offer(trained, next_step)

    def _may_have(self, group: Trained, step: int) -> bool:
        return group.uses < self.max_reuse and group.start_version + self.bound >= step
