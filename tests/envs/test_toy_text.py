"""gymnasium's small games as text."""

import random

import gymnasium
import numpy as np
import pytest

from roll.envs.planning import optimal_actions
from roll.envs.registry import make_env


@pytest.mark.parametrize(
    ("env_type", "name"), [("cliff_walking", "CliffWalking-v1"), ("taxi", "Taxi-v4"), ("blackjack", "Blackjack-v1")]
)
def test_rewards_and_endings_are_gymnasiums(env_type: str, name: str) -> None:
    """The same seed and actions, played through gymnasium itself."""
    env, game, rng = make_env(env_type, {"max_steps": 40}), gymnasium.make(name).unwrapped, random.Random(0)
    for seed in range(20):
        env.reset(seed)
        game.reset(seed=seed)
        for _ in range(40):
            action = rng.randrange(int(game.action_space.n))
            _, reward, terminated, _, _ = env.step(env.reader.write(action))
            _, expected, over, _, _ = game.step(action)
            assert (reward, terminated) == (float(expected), over)
            if over:
                break


def test_cliff_walking() -> None:
    env = make_env("cliff_walking", {})
    observation, _ = env.reset(0)
    assert observation.splitlines()[3] == "PCCCCCCCCCCG"
    observation, reward, terminated, _, _ = env.step("<answer>Right</answer>")
    assert (reward, terminated, observation.splitlines()[3][0]) == (-100.0, False, "P"), "back at the start"
    assert not env.step("<answer>Left</answer>")[4]["action_is_effective"]


@pytest.mark.parametrize(("env_type", "best"), [("cliff_walking", -13.0), ("taxi", None)])
def test_the_oracle_is_optimal(env_type: str, best: float | None) -> None:
    env = make_env(env_type, {})
    returns = []
    for seed in range(30):
        env.reset(seed)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, info = env.step(env.oracle_action())
            total, over = total + reward, terminated or truncated
        assert info["success"]
        returns.append(total)
    if best is not None:
        assert set(returns) == {best}
    else:  # from the farthest state the passenger is delivered in 18 moves; -1 each, 20 at the end
        assert all(3 <= total <= 16 for total in returns)


def test_taxi_says_where_everything_is() -> None:
    env = make_env("taxi", {})
    observation, info = env.reset(0)
    row, column, passenger, destination = env._game.decode(int(info["state_key"]))
    assert observation.startswith(f"Taxi: ({row}, {column}). Passenger: at {env.STANDS[passenger]}.")
    assert observation.endswith(f"Destination: {env.STANDS[destination]}.")


def test_blackjack_basic_strategy_loses_least() -> None:
    """About -4.5 % a round for cards with replacement (Sutton and Barto's rules without a premium for naturals); a random player
    loses about 40 %. 2,000 rounds have a standard error of 2 %."""
    env, rng = make_env("blackjack", {}), random.Random(0)

    def mean_reward(agent: str) -> float:
        total = 0.0
        for seed in range(2000):
            env.reset(seed)
            over = False
            while not over:
                text = env.oracle_action() if agent == "oracle" else env.sample_action(rng)
                _, reward, over, _, _ = env.step(text)
            total += reward
        return total / 2000

    assert mean_reward("oracle") == pytest.approx(-0.045, abs=0.06)
    assert mean_reward("random") < -0.3


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
