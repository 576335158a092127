"""Present state of a run, for display and callbacks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from roll.core.configs.plain import JsonMapping

ENGINES = "max_running_requests"


class Places(NamedTuple):
    """Number of rollouts that can be under way together."""

    total: int
    key: str
    """The setting that limits them."""
    unit: int
    """Rollouts added by one more of `key`; 0 if more would not be taken."""


@dataclass(frozen=True, slots=True)
class RoleLine:
    """Present activity of a role, or the reason why it waits, and the seconds since."""

    name: str
    state: str
    reason: str
    since_s: float
    """Seconds it has been in this state."""


@dataclass(frozen=True)
class RunProgress:
    step: int
    """Completed steps."""
    max_steps: int
    counted: str = "step"
    """Unit of `step`."""
    elapsed_s: float = 0.0
    eta_s: float | None = None
    """Seconds to the end; None while unknown."""
    staleness_bound: int = 0
    tokens_per_s: float | None = None
    roles: list[RoleLine] = field(default_factory=list)
    groups: JsonMapping = field(default_factory=dict)
    """Counters: admitted, trained, buffered, in flight, dropped by reason, ...; like `roles`, as of the last look."""
    generating_s: float = 0.0
    """Seconds in which at least one rollout was under way."""
    places: Places | None = None
    """Places for rollouts; None while no rollouts can be under way, or in another process."""

    @property
    def reached(self) -> str:
        return f"{self.counted} {self.step}/{self.max_steps}"
