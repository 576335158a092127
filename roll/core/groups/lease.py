"""A lease of groups to the trainer, with the time since which they were available."""

from __future__ import annotations

from dataclasses import dataclass

from roll.core.data.sample import SampleGroup


@dataclass(frozen=True, slots=True)
class Lease:
    """Groups of one step, in the order of admission. They are buffered until the step is `trained`."""

    step: int
    """Steps done before this one: the policy version that it trains."""
    groups: tuple[SampleGroup, ...]
    asked_at: float
    """Time at which the trainer asked for them."""
    complete_at: float
    """Time since which they, and whatever the step lacks, lay ready."""
    leased_at: float
    last: bool = True
    """True if the step has all its groups now."""
    reuses: int = 0
    """Number of groups that were trained before."""

    @property
    def group_ids(self) -> tuple[int, ...]:
        return tuple(group.group_id for group in self.groups)
