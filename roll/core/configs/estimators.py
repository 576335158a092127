"""The built-in advantage estimators: name, traits and formula of each. A new one is an entry here and a function of its name in
`roll.core.algorithms.sequence_advantages` or `step_advantages`.

In the formulas R is the reward of a sequence, A its advantage, G the return of a turn, N a normalisation over returns.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

Scope = Literal["batch", "group", "running"]
"""The set of rewards for a normalisation; running: all so far."""
TurnScope = Literal["batch", "group"]


@dataclass(frozen=True, slots=True)
class Estimator:
    formula: str
    """The formula; `roll.plan.formulas` fills in the fields in braces."""
    group_relative: bool = False
    """It compares the rollouts of a group."""
    per_turn: bool = False
    """It gives each turn of an episode its own advantage."""
    whitened: bool = False
    """Its definition includes whitening over the trained tokens of the batch."""
    of_batch: bool = False
    """It compares the groups of a batch."""
    needs_critic: bool = False
    needs_greedy: bool = False
    """It compares each response with the greedy one to the same prompt."""
    of_teachers: bool = False
    """It reads no rewards: teachers alone give advantages."""


ESTIMATORS: dict[str, Estimator] = {
    "reinforce": Estimator("A = R"),
    "grpo": Estimator("A = (R − group mean) / (group std + 1e-6)", group_relative=True),
    "rloo": Estimator("A = R − mean of the others of the group", group_relative=True),
    "dr_grpo": Estimator("A = R − group mean", group_relative=True),
    "reinforce_plus_plus": Estimator("A = R", whitened=True),
    "reinforce_plus_plus_baseline": Estimator("A = R − group mean", group_relative=True, whitened=True),
    "opo": Estimator("A = R − Σ length·R / Σ length over the group", group_relative=True),
    "gpg": Estimator("A = (R − group mean)·samples / samples of groups that differ", group_relative=True, of_batch=True),
    "gae": Estimator(
        "A_t = δ_t + {decay:g}·A_next, δ_t = r_t + {gamma}V_next − V_t, next of the policy's tokens", needs_critic=True
    ),
    "raft": Estimator("A = 1"),
    "remax": Estimator("A = R − reward of the greedy response", needs_greedy=True),
    "on_policy_distillation": Estimator("A = 0", of_teachers=True),
    "step_reinforce": Estimator("A = N(G), {returns}, {normed}", per_turn=True),
    "agentic_reinforce": Estimator("A = G, {returns}", per_turn=True),
    "gigpo": Estimator(
        "A = {episode:g}·N(R of the episode) + {step:g}·N(G among equal states), {returns}, {normed}",
        group_relative=True,
        per_turn=True,
    ),
}

OWN_FUNCTION = Estimator("")
"""The traits of a user's own estimator."""

if TYPE_CHECKING:
    AdvantageEstimator: TypeAlias = str
else:
    AdvantageEstimator = Literal[*ESTIMATORS]  # the names once: they stand in the table, and in no type of their own

STEP_ESTIMATORS = tuple(name for name, entry in ESTIMATORS.items() if entry.per_turn)
GROUP_RELATIVE = tuple(name for name, entry in ESTIMATORS.items() if entry.group_relative)
WHITENED = tuple(name for name, entry in ESTIMATORS.items() if entry.whitened)


def usable_estimators(refused: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in ESTIMATORS if name not in refused)
