"""The checks of what an environment returns."""

from __future__ import annotations

import math
from typing import Any

from roll.data.untrusted import complaint
from roll.errors import EnvFailure
from roll.rollout.environment import Reset, Step

NO_RESET = ("reset must return", "the observation of reset must be", "the info of reset must be")
"""What the messages about a reset of another shape begin with."""


def checked_reset(answer: object) -> Reset:
    """Raises `EnvFailure`."""
    if not (isinstance(answer, (tuple, list)) and len(answer) == 2):
        raise EnvFailure("exception", f"reset must return (observation, info), not {_shown(answer)}")
    observation, info = answer
    return _text("reset", observation), _info("reset", info)


def checked_step(answer: Any) -> Step:
    """Raises `EnvFailure`."""
    if not (isinstance(answer, (tuple, list)) and len(answer) == 5):
        message = f"step must return (observation, reward, terminated, truncated, info), not {_shown(answer)}"
        raise EnvFailure("exception", message)
    observation, reward, terminated, truncated, info = answer
    try:
        reward = float(reward)
    except (TypeError, ValueError):
        raise EnvFailure("exception", f"the reward of a step must be a number, not {_shown(reward)}") from None
    if not math.isfinite(reward):
        raise EnvFailure("exception", f"the reward of a step must be finite, not {reward}")
    return _text("step", observation), reward, bool(terminated), bool(truncated), _info("step", info)


def _text(method: str, observation: object) -> str:
    if not isinstance(observation, str):
        raise EnvFailure("exception", f"the observation of {method} must be text, not {_shown(observation)}")
    _check(f"the observation of {method}", observation)
    return observation


def _info(method: str, info: object) -> dict[str, object]:
    if not isinstance(info, dict):
        raise EnvFailure("exception", f"the info of {method} must be a dict, not {_shown(info)}")
    _check(f"the info of {method}", info)
    return info


def _check(what: str, value: object) -> None:
    """Raises `EnvFailure` unless the value can be stored: it becomes part of journals and checkpoints."""
    if wrong := complaint(value):
        raise EnvFailure("exception", f"{what} {wrong}")


def _shown(value: object) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= 100 else text[:97] + "..."
