"""Returns and values along a trajectory of tokens: an action's later rewards, discounted by *actions*, never by position.

All tensors are [S, T], right-padded. `mask` is True on the policy's own tokens; prompts, observations and padding may hold
anything in every argument. They take no part: no discount passes through them, no value leaks from them.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from roll.core.algorithms.ratio import select

Action = Literal["token", "turn"]
"""The unit of an action, discounted once: a token, or a contiguous run of the policy's tokens."""


def turn_starts(mask: Tensor) -> Tensor:
    """[S, T] bool: the first token of each turn."""
    before = torch.cat([torch.zeros_like(mask[:, :1]), mask[:, :-1]], dim=1)
    return mask & ~before


def on_last_token(values: Tensor, mask: Tensor) -> Tensor:
    """[S, T] `values` [S] on the last token of each row's mask, 0 elsewhere; nothing in a row without tokens."""
    left = mask.flip(1).cumsum(1).flip(1)
    return torch.where(mask & (left == 1), values[:, None], values.new_zeros(()))


def discounted_returns(rewards: Tensor, mask: Tensor, gamma: float, action: Action = "token") -> Tensor:
    """[S, T] G_t = Σ_{k ≥ t} γ^(actions from t to k) · r_k over the tokens k in the mask; 0 outside it.

    With `action="turn"` the tokens of a turn are one action: a reward at the end of the turn reaches all of them undiscounted."""
    rewards = select(rewards, mask)
    crossed = turn_starts(mask) if action == "turn" else mask
    returns, later = torch.zeros_like(rewards), rewards.new_zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        current = rewards[:, t] + later
        returns[:, t] = current
        # Whoever acts before this token is one action further away, if this token began an action.
        later = torch.where(crossed[:, t], gamma * current, current)
    return select(returns, mask)


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Advantages and returns [S, T] of each token as an action (generalised advantage estimation, arXiv 1506.02438):

        δ_t = r_t + γ·V_next − V_t,  A_t = δ_t + γλ·A_next,  return_t = A_t + V_t

    `next` is the next token in the *mask*; after the last one both are 0. Outside the mask advantages and returns are 0."""
    rewards, values = select(rewards, mask), select(values, mask)
    advantages = torch.zeros_like(rewards)
    next_value = next_advantage = rewards.new_zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantages[:, t] = delta + gamma * lam * next_advantage
        next_value = torch.where(mask[:, t], values[:, t], next_value)
        next_advantage = torch.where(mask[:, t], advantages[:, t], next_advantage)
    advantages = select(advantages, mask)
    return advantages, advantages + values
