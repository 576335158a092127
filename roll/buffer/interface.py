"""What lies between explorer and trainer: finished groups, leased for a step, then acknowledged or released."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from roll.data.sample import SampleGroup


@dataclass(frozen=True, slots=True)
class Lease:
    """The groups of one step, in the order of admission. They stay in the buffer until the lease is acknowledged."""

    step: int
    groups: tuple[SampleGroup, ...]
    slack_s: float = 0.0
    """How long the batch lay complete before it was asked for."""

    @property
    def group_ids(self) -> tuple[int, ...]:
        return tuple(group.group_id for group in self.groups)


@dataclass(frozen=True, slots=True)
class Selection:
    """What the trainer may take for a step."""

    take: tuple[int, ...] = ()
    """Group ids, exactly B of them in the order of admission, or none while it has to wait."""
    drop: dict[int, str] = field(default_factory=dict)
    """Group id -> reason, for groups that can no longer be trained."""
    waiting_for: str = ""
    """Why nothing is taken."""


class Accounts(Protocol):
    """Who knows of all live groups, buffered or still in flight, and decides what a step takes (see `rollout/admission.py`)."""

    batch_groups: int

    def select(self, step: int) -> Selection: ...

    def finish(self, group_id: int) -> None: ...

    def train(self, group_ids: tuple[int, ...]) -> None: ...


class Buffer(Protocol):
    async def put(self, group: SampleGroup) -> None: ...

    async def lease(self, step: int) -> Lease:
        """Waits for the groups of `step`; what it waits for is `waiting_for`."""

    async def ack(self, lease: Lease) -> None:
        """The leased groups have been trained: they leave the buffer."""

    async def release(self, lease: Lease) -> None:
        """The leased groups were not trained: they can be leased again."""

    @property
    def waiting_for(self) -> str: ...

    def stats(self) -> dict[str, Any]: ...
