"""What a user's code says that an episode has earned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from roll.errors import EpisodeFailed


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
    numbers = {str(name): _number(int(part) if isinstance(part, bool) else part) for name, part in parts.items()}
    earned = _number(reward)
    if earned is None or not (success is None or isinstance(success, bool)) or None in numbers.values():
        told = repr(value)
        shown = told if len(told) <= 200 else f"{told[:200]}..."
        wanted = "a finite number, or {reward: number, success: true or false, name: number, ...}"
        raise EpisodeFailed("scoring", f"{whose} says {shown}, not {wanted}")
    return Score(earned, success, {name: number for name, number in numbers.items() if number is not None})


def _number(value: object) -> float | None:
    if hasattr(value, "item") and getattr(value, "size", 1) == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
