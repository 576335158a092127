"""Decisions of admission about one group, and about the groups of a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class GroupState(Enum):
    IN_FLIGHT = "in_flight"
    BUFFERED = "buffered"


@dataclass(slots=True)
class Ticket:
    """A live group: admitted, not yet trained or dropped."""

    group_id: int
    start_version: int
    state: GroupState = GroupState.IN_FLIGHT


@dataclass(frozen=True, slots=True)
class Selection:
    """The groups that the trainer may take for a step."""

    take: tuple[int, ...] = ()
    """Group ids in the order of admission, or none while it has to wait."""
    drop: dict[int, str] = field(default_factory=dict)
    """Group id -> reason, for groups that can no longer be trained."""
    waiting_for: str = ""
    """Reason for taking nothing."""
