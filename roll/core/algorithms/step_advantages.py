"""Advantages of the turns of multi-turn episodes. A turn is one action: one response of the policy in an environment.

An estimator is a pure function `(Turns, TurnArgs) -> [K]`, one advantage a turn, for all of its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor

from roll.core.algorithms.registry import Registry
from roll.core.algorithms.reward_normalization import normalize_rewards
from roll.core.configs.estimators import Scope


@dataclass(frozen=True, kw_only=True)
class Turns:
    """The turns of a batch of episodes, in any order."""

    rewards: Tensor
    """[K] float, reward of each turn; the outcome of an episode stands on its last turn."""
    episode_ids: Tensor
    """[K] int64."""
    positions: Tensor
    """[K] int64, the turn's place in its episode; gaps are allowed."""
    task_ids: Tensor
    """[K] int64, the task of the episode: episodes of one task start in the same state, they are the group."""
    states: Sequence[Hashable] | None = None
    """[K] the policy's observation before the turn, or a hash of it; needed by gigpo."""


@dataclass(frozen=True, kw_only=True)
class TurnArgs:
    """The knobs of all estimators; each reads its own."""

    gamma: float = 0.95
    """Discount per turn."""
    mean: Scope | None = "group"
    """step_reinforce, gigpo: scope of the mean that is subtracted."""
    std: Scope | None = "group"
    """step_reinforce, gigpo: scope of the deviation divided by; None is the leave-std-out variant of GiGPO."""
    episode_weight: float = 1.0
    step_weight: float = 1.0
    """gigpo: weights of its two parts."""


StepEstimator: TypeAlias = Callable[[Turns, TurnArgs], Tensor]

step_estimator: Registry[StepEstimator] = Registry("adv_estimator")
"""`@step_estimator("name")` registers an estimator."""


def turn_returns(turns: Turns, gamma: float) -> Tensor:
    """[K] G = r + γ·G of the next turn of the episode: discounted by turns, however many tokens they have."""
    rewards, episodes, positions = turns.rewards.tolist(), turns.episode_ids.tolist(), turns.positions.tolist()
    backwards = sorted(range(len(rewards)), key=lambda k: (episodes[k], positions[k]), reverse=True)
    for later, k in pairwise(backwards):
        if episodes[later] == episodes[k]:
            rewards[k] += gamma * rewards[later]
    return torch.tensor(rewards, dtype=turns.rewards.dtype)


def state_ids(turns: Turns) -> Tensor:
    """[K] int64: equal for equal states of one task. Raises `ValueError` where states are not known."""
    if turns.states is None:
        raise ValueError("adv_estimator 'gigpo' needs the state before each turn")
    numbers: dict[tuple[int, Hashable], int] = {}
    keys = zip(turns.task_ids.tolist(), turns.states, strict=True)
    return torch.tensor([numbers.setdefault(key, len(numbers)) for key in keys], dtype=torch.int64)


@step_estimator("agentic_reinforce")
def agentic_reinforce(turns: Turns, args: TurnArgs) -> Tensor:
    """The return of the turn, computed from normalised rewards."""
    return turn_returns(turns, args.gamma)


@step_estimator("step_reinforce")
def step_reinforce(turns: Turns, args: TurnArgs) -> Tensor:
    """The return of the turn, normalised over all turns of the task ("group") or of the batch."""
    return normalize_rewards(turn_returns(turns, args.gamma), turns.task_ids, args.mean, args.std)


@step_estimator("gigpo")
def gigpo(turns: Turns, args: TurnArgs) -> Tensor:
    """w_e · N_task(R of the episode) + w_s · N_(task, state)(return of the turn), N the normalisation over a group (GiGPO,
    arXiv 2505.10978). Each episode counts once in N_task, however many turns it has; equal states of different tasks are
    different states. A state that was seen once adds nothing."""
    episodes, index = torch.unique(turns.episode_ids, return_inverse=True)
    scores = turns.rewards.new_zeros(len(episodes)).index_add(0, index, turns.rewards)
    task_of_episode = turns.task_ids.new_zeros(len(episodes)).scatter(0, index, turns.task_ids)
    by_episode = normalize_rewards(scores, task_of_episode, args.mean, args.std)[index]
    by_state = normalize_rewards(turn_returns(turns, args.gamma), state_ids(turns), args.mean, args.std)
    return args.episode_weight * by_episode + args.step_weight * by_state


def step_advantages(turns: Turns, estimator: str, args: TurnArgs) -> Tensor:
    """[K] by a registered estimator or the dotted path of one; `ValueError` for an unknown one, with the nearest known name."""
    return step_estimator.get(estimator)(turns, args)
