"""The names that a key has beside the dotted path of a user's own function: for editors and shells. The rules refuse the rest."""

from __future__ import annotations

from roll.configs.agentic import AgenticConfig
from roll.configs.estimators import ESTIMATORS
from roll.configs.losses import POLICY_LOSSES


def names_or_path(cls: object, key: str) -> tuple[str, ...]:
    """The built-in names of `key` in a configuration of class `cls`; empty if the key is of another kind."""
    if key == "pg_variant":
        return tuple(POLICY_LOSSES)
    if key == "adv_estimator":
        agentic = cls is AgenticConfig
        return tuple(name for name, e in ESTIMATORS.items() if not (e.needs_greedy if agentic else e.per_turn))
    return ()
