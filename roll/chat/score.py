"""The score of an episode, as a user's code tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from roll.core.data.numbers import plain_number
from roll.core.data.untrusted import described
from roll.core.errors import EpisodeFailed


@dataclass(frozen=True, slots=True)
class Score:
    reward: float
    success: bool | None = None
    metrics: dict[str, float] = field(default_factory=dict)


def read_score(value: object, whose: str) -> Score:
    """A number; or a mapping with reward, and, if they are known, success and numbers that become metrics. Raises
    `EpisodeFailed`."""
    parts = dict(value) if isinstance(value, Mapping) else {"reward": value}
    reward, success = parts.pop("reward", None), parts.pop("success", None)
    numbers = {str(name): plain_number(int(part) if isinstance(part, bool) else part) for name, part in parts.items()}
    earned = plain_number(reward)
    if earned is None or not (success is None or isinstance(success, bool)) or None in numbers.values():
        wanted = "a finite number, or {reward: number, success: true or false, name: number, ...}"
        raise EpisodeFailed("scoring", f"{whose} says {described(value)}, not {wanted}")
    return Score(earned, success, {name: number for name, number in numbers.items() if number is not None})
