"""The staleness bound, the limit on rollouts ahead of training: terms and numbers shared by configuration and admission."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from roll.core.configs.fields import Bounds, option

StalenessPolicy = Literal["wait", "drop"]
GroupsOrder = Literal["fifo", "newest"]


@dataclass(frozen=True, kw_only=True)
class StalenessTuningConfig:
    """ESS: the effective sample size of a step's importance weights, trained over sampling policy by response, as a share of the
    responses (`actor/train_infer_ess_sequence`)."""

    learning_rate: bool = option(
        False,
        "Multiply the learning rate of each optimiser step by sqrt(min(1, ESS / target_ess)), as VCPO does (arXiv 2602.17616).",
    )
    depth: bool = option(
        False, "Start rollouts no further ahead than keeps the ESS at target_ess, within async_generation_ratio."
    )
    target_ess: float = option(
        0.5, "The ESS from which on nothing is changed. VCPO's is 1, with the learning rate.", bounds=Bounds(gt=0, le=1)
    )


def staleness_bound(ratio: float) -> int:
    """Returns the maximum number of versions between the one that sampled a token and the trained one."""
    return math.ceil(ratio)


def deepest_pipeline(ratio: float, push_interval: int = 1, max_reuse: int = 1) -> float:
    """Returns the maximum number of batches ahead of training. `ratio`: α. At least as many as are trained between two versions,
    if α allows them, and more as long as groups can still be reused. A group that n steps train takes the places of n groups, so
    a queue of them lasts n times as long: with the n-th part of (1 + α) batches under way a group is young enough for n steps."""
    return max(min(push_interval, ratio), ratio - (1 + ratio) * (1 - 1 / max_reuse))
