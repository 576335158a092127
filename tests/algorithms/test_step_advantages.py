"""Turns of multi-turn episodes: returns by turns, states that belong to a task, episodes that count once."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.core.algorithms.step_advantages import TurnArgs, Turns, step_advantages, step_estimator, turn_returns

DOUBLE = torch.float64


def turns(rows):
    """Of (task, episode, position, state, reward)."""
    task, episode, position, state, reward = zip(*rows, strict=True)
    return Turns(
        rewards=torch.tensor(reward, dtype=DOUBLE),
        episode_ids=torch.tensor(episode),
        positions=torch.tensor(position),
        task_ids=torch.tensor(task),
        states=state,
    )


# Task 0: episode 10 wins after three turns, episode 11 loses after one. Task 1: episode 12 loses, episode 13 wins.
BATCH = turns(
    [
        (0, 10, 0, "a", 0.0),
        (0, 10, 1, "b", 0.0),
        (0, 10, 2, "c", 1.0),
        (0, 11, 0, "a", 0.0),
        (1, 12, 0, "a", 0.0),
        (1, 13, 0, "a", 1.0),
    ]
)
HALF = 1 / math.sqrt(2)  # (1 − mean)/std of the two rewards 1 and 0: 0.5 / √0.5


def close(found, right):
    torch.testing.assert_close(found, torch.tensor(right, dtype=DOUBLE), rtol=0, atol=5e-5)


def test_returns_discount_by_turn():
    close(turn_returns(BATCH, 0.5), [0.25, 0.5, 1, 0, 0, 1])
    close(step_advantages(BATCH, "agentic_reinforce", TurnArgs(gamma=0.5)), [0.25, 0.5, 1, 0, 0, 1])


def test_step_reinforce_normalises_the_returns_of_a_task():
    """Task 0: returns 0.25, 0.5, 1, 0, mean 0.4375; task 1: 0, 1, mean 0.5."""
    args = TurnArgs(gamma=0.5, std=None)
    close(step_advantages(BATCH, "step_reinforce", args), [-0.1875, 0.0625, 0.5625, -0.4375, -0.5, 0.5])
    raw = replace(args, mean=None)
    close(step_advantages(BATCH, "step_reinforce", raw), [0.25, 0.5, 1, 0, 0, 1])


def test_gigpo_by_hand():
    """Episodes of task 0 score 1 and 0, whatever their number of turns: ±0.7071 after normalisation, as in task 1.
    State groups: (0, a) with returns 0.25 and 0: ±0.7071; (0, b) and (0, c) alone: 0; (1, a) with 0 and 1: ∓0.7071."""
    args = TurnArgs(gamma=0.5)
    close(step_advantages(BATCH, "gigpo", args), [2 * HALF, HALF, HALF, -2 * HALF, -2 * HALF, 2 * HALF])
    weighted = replace(args, episode_weight=0.0, step_weight=3.0)
    close(step_advantages(BATCH, "gigpo", weighted), [3 * HALF, 0, 0, -3 * HALF, -3 * HALF, 3 * HALF])
    no_std = replace(args, std=None, step_weight=0.0)
    close(step_advantages(BATCH, "gigpo", no_std), [0.5, 0.5, 0.5, -0.5, -0.5, 0.5])


def test_equal_states_of_different_tasks_are_not_pooled():
    """Pooled over tasks the four turns in state "a" have returns 0.25, 0, 0, 1: the first would be below their mean."""
    first = step_advantages(BATCH, "gigpo", TurnArgs(gamma=0.5, episode_weight=0.0))[0]
    assert first > 0


def test_gigpo_needs_states():
    with pytest.raises(ValueError, match="needs the state"):
        step_advantages(replace(BATCH, states=None), "gigpo", TurnArgs())


def test_unknown_estimator_names_the_nearest():
    with pytest.raises(ValueError, match="unknown adv_estimator 'gigp'; did you mean gigpo"):
        step_advantages(BATCH, "gigp", TurnArgs())


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from("abc"), st.sampled_from([0.0, 1.0, -0.5])),
        min_size=1,
        max_size=12,
    ),
    seed=st.integers(0, 2**20),
    estimator=st.sampled_from(step_estimator.names),
    std=st.sampled_from(["group", "batch", None]),
)
def test_order_and_numbering_do_not_matter_and_all_is_finite(rows, seed, estimator, std):
    """An episode belongs to one task: its number here says which."""
    batch = turns([(task, 10 * task + episode, i, state, reward) for i, (task, episode, state, reward) in enumerate(rows)])
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    shuffled = Turns(
        rewards=batch.rewards[order],
        episode_ids=7 - batch.episode_ids[order],
        positions=batch.positions[order] * 3,
        task_ids=-batch.task_ids[order],
        states=[batch.states[i] * 2 for i in order],
    )
    args = TurnArgs(std=std)
    result = step_advantages(batch, estimator, args)
    assert result.shape == (len(rows),)
    assert torch.isfinite(result).all()
    torch.testing.assert_close(step_advantages(shuffled, estimator, args), result[order], rtol=1e-6, atol=1e-6)
