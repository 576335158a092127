"""The best policy of a small Markov decision process whose transitions are known: value iteration."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Transitions = Mapping[int, Mapping[int, list[tuple[float, int, float, bool]]]]
"""state -> action -> [(probability, next state, reward, terminated)], gymnasium's `P`. States and actions count from 0."""


def optimal_actions(transitions: Transitions, discount: float = 0.99, tolerance: float = 1e-9) -> NDArray[np.int64]:
    """[states]: the action of largest expected discounted return; -1 where the return of all actions is the same.

    V(s) = max_a Σ p·(r + discount·V(s')·[not terminated]), iterated until no value changes by more than `tolerance`."""
    rows = [
        (state, action, probability, following, reward, not terminated)
        for state, actions in transitions.items()
        for action, outcomes in actions.items()
        for probability, following, reward, terminated in outcomes
    ]
    state, action, probability, following, reward, goes_on = (np.array(column) for column in zip(*rows, strict=True))
    states, actions = len(transitions), len(transitions[0])
    values = np.zeros(states)
    while True:
        returns = np.zeros((states, actions))
        np.add.at(returns, (state, action), probability * (reward + discount * goes_on * values[following]))
        improved = returns.max(axis=1)
        change = np.abs(improved - values).max()
        values = improved
        if change <= tolerance:
            flat = returns.max(axis=1) - returns.min(axis=1) <= tolerance
            return np.where(flat, -1, returns.argmax(axis=1))
