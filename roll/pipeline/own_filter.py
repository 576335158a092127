"""A filter of groups that the configuration names."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from roll.configs.dotted_path import import_object
from roll.errors import boundary, contained
from roll.rollout.filters import GroupFilter


def own_filter(path: str) -> GroupFilter:
    """A function of a group's rewards, or a class whose instances are one."""
    found: Any = import_object(path)
    made: Any = found() if inspect.isclass(found) else found

    def checked(rewards: Sequence[float]) -> str | None:
        if isinstance(verdict := contained(made, rewards), str | None):
            return verdict
        raise ValueError(f"{path} must return the reason to drop a group (text) or None, not {verdict!r}")

    with boundary(ValueError, "it fails on the rewards [0.0, 1.0]"):
        checked([0.0, 1.0])
    return checked
