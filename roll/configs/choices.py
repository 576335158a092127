"""The names that a key has beside the dotted path of a user's own function: for editors and shells. The rules refuse the rest."""

from __future__ import annotations

from typing import Any, get_args

from roll.configs.agentic import AgenticConfig
from roll.configs.estimators import STEP_ESTIMATORS
from roll.configs.pg_variants import PG_VARIANTS
from roll.configs.ppo import AdvantageEstimator

_NOT_FOR_EPISODES = ("remax",)


def names_or_path(cls: Any, key: str) -> tuple[str, ...]:
    """The built-in names of `key` in a configuration of class `cls`; empty if the key is of another kind."""
    if key == "pg_variant":
        return PG_VARIANTS
    if key == "adv_estimator":
        refused = _NOT_FOR_EPISODES if cls is AgenticConfig else STEP_ESTIMATORS
        return tuple(name for name in get_args(AdvantageEstimator) if name not in refused)
    return ()
