"""What a configuration has to know of the advantage estimators."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import get_args

from roll.configs.dotted_path import DOTTED_PATH
from roll.configs.pg_variants import PG_VARIANTS
from roll.configs.ppo import AdvantageEstimator
from roll.configs.problems import Problem

GROUP_RELATIVE = ("grpo", "rloo", "dr_grpo", "reinforce_plus_plus_baseline", "opo", "gpg")
"""They compare the rollouts of a group."""
STEP_ESTIMATORS = ("step_reinforce", "agentic_reinforce", "gigpo")
"""They give each turn of an episode an advantage of its own."""


def unusable_estimator(estimator: str, refused: Mapping[str, str]) -> Iterator[Problem]:
    """`refused`: estimators that this pipeline cannot use, and why."""
    known = [name for name in get_args(AdvantageEstimator) if name not in refused]
    if estimator in refused:
        yield Problem("adv_estimator", estimator, refused[estimator], "e.g. grpo or rloo")
    elif estimator not in known and not DOTTED_PATH.fullmatch(estimator):
        nearest = difflib.get_close_matches(estimator, known, n=1)
        fix = f"did you mean {nearest[0]}?" if nearest else f"one of {', '.join(known)}, or the dotted path of your own function"
        if estimator in PG_VARIANTS:
            critic = ", and adv_estimator: gae for PPO with a critic" if estimator == "ppo" else ""
            fix = f"actor_train.pg_variant: {estimator}{critic}"
        yield Problem("adv_estimator", estimator, "is not an advantage estimator", fix)
