"""Value iteration."""

import numpy as np

from roll.envs.planning import optimal_actions


def test_value_iteration_on_a_chain() -> None:
    """0 -> 1 -> end pays 10, leaving from 0 at once pays 1: going on is worth it iff 10 x discount > 1."""
    chain = {
        0: {0: [(1.0, 0, 1.0, True)], 1: [(1.0, 1, 0.0, False)]},
        1: {0: [(1.0, 1, 10.0, True)], 1: [(0.5, 1, 10.0, True), (0.5, 1, 0.0, True)]},
    }
    assert np.array_equal(optimal_actions(chain, discount=0.9), [1, 0])
    assert np.array_equal(optimal_actions(chain, discount=0.05), [0, 0])
    flat = {0: {0: [(1.0, 0, 1.0, True)], 1: [(1.0, 0, 1.0, True)]}}
    assert np.array_equal(optimal_actions(flat), [-1])
