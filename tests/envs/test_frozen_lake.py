"""FrozenLake: maps, rules, symbols, slips, and what an unreadable action costs."""

import random

import numpy as np
import pytest

from roll.core.configs.problems import ConfigError
from roll.envs.environment import Step
from roll.envs.frozen_lake import draw_map, is_solvable, optimal_actions
from roll.envs.registry import make_env
from roll.envs.text_game import TextGame

LETTERS = {"action_pattern": "(.*)", "action_lookup": {"L": "Left", "D": "Down", "R": "Right", "U": "Up"}}


def frozen_lake(**config: object) -> TextGame:
    env = make_env("frozen_lake", config)
    assert isinstance(env, TextGame)
    return env


def places(rows: list[str], letter: str) -> list[tuple[int, int]]:
    return [(r, c) for r, row in enumerate(rows) for c, symbol in enumerate(row) if symbol == letter]


@pytest.mark.parametrize(
    ("size", "p", "random_places", "different"), [(4, 0.8, True, 95), (4, 0.8, False, 75), (8, 0.5, True, 95), (2, 0.1, True, 8)]
)
def test_every_map_has_one_start_one_goal_and_a_way(size: int, p: float, random_places: bool, different: int) -> None:
    """p = 0.5 on 8 x 8 is often, p = 0.1 almost always below the share of ice that leaves a way."""
    maps = [draw_map(np.random.default_rng(seed), size, p, random_places) for seed in range(100)]
    for rows in maps:
        (start,), (goal,) = places(rows, "S"), places(rows, "G")
        assert is_solvable(np.array([list(row) for row in rows]), start, goal)
        assert random_places or (start, goal) == ((0, 0), (size - 1, size - 1))
    assert len({"".join(rows) for rows in maps}) >= different


def test_a_way_is_cut_where_none_is_ever_drawn() -> None:
    rows = draw_map(np.random.default_rng(0), 12, 0.05, False)
    assert is_solvable(np.array([list(row) for row in rows]), (0, 0), (11, 11))
    assert sum(row.count("H") for row in rows) > 80


def test_ice_is_as_frequent_as_p_says() -> None:
    """Corners are given away; the condition that a way exists favours ice a little."""
    rows = ["".join(draw_map(np.random.default_rng(seed), 8, 0.9, False)) for seed in range(100)]
    assert np.mean([row.count("F") / 62 for row in rows]) == pytest.approx(0.9, abs=0.02)


def test_the_oracle_always_arrives_on_the_shortest_way() -> None:
    env = frozen_lake()
    for seed in range(100):
        env.reset(seed)
        steps = 0
        while True:
            action = env.oracle_action()
            assert action is not None
            _, reward, terminated, truncated, info = env.step(action)
            steps += 1
            if terminated or truncated:
                break
        assert (reward, terminated, info["success"]) == (1.0, True, True)
        assert steps < 16


def test_on_slippery_ice_the_oracle_is_better_than_luck() -> None:
    def success_share(agent: str) -> float:
        env, rng = frozen_lake(is_slippery=True), random.Random(0)
        wins = 0
        for seed in range(100):
            env.reset(seed)
            while True:
                action = env.oracle_action() if agent == "oracle" else env.sample_action(rng)
                _, _, terminated, truncated, info = env.step(action or "")
                if terminated or truncated:
                    wins += info["success"]
                    break
        return wins / 100

    assert success_share("oracle") > success_share("random") + 0.25


def test_a_seed_decides_map_and_slips() -> None:
    def play(seed: int) -> list[Step]:
        env = frozen_lake(is_slippery=True, size=8, p=0.95)
        env.reset(seed)
        steps = []
        for _ in range(30):
            steps.append(env.step("<answer>Right</answer>"))
            if steps[-1][2]:
                break
        return steps

    assert play(7) == play(7)
    assert len({play(seed)[0][0] for seed in range(20)}) == 20


def lake(rows: list[str], **config: object) -> TextGame:
    """A lake with this map."""
    env = frozen_lake(size=len(rows), **config)
    env.reset(0)
    env.env._map = rows
    env.env._lake = type(env.env._lake)(desc=rows, is_slippery=False)
    env.env._lake.reset(seed=0)
    env._look(env.env._drawn(), env.env._info(0.0))
    return env


def test_moves_borders_hole_and_goal() -> None:
    env = lake(["SF", "HG"])
    observation, reward, terminated, _, info = env.step("I think <answer>left</answer>")
    assert (observation, reward, terminated) == ("P_\nOG", 0.0, False)
    assert info["action_is_valid"] and not info["action_is_effective"], "the border"
    assert env.step("<answer>Right</answer>")[0] == "_P\nOG"
    observation, reward, terminated, truncated, info = env.step("<answer>Down</answer>")
    assert (observation, reward, terminated, truncated, info["success"]) == ("__\nO√", 1.0, True, False, True)

    env = lake(["SF", "HG"])
    observation, reward, terminated, _, info = env.step("<answer>Down</answer>")
    assert (observation, reward, terminated, info["success"]) == ("__\nXG", 0.0, True, False)
    with pytest.raises(RuntimeError, match="reset"):
        env.step("<answer>Up</answer>")


def test_an_unreadable_action_costs_the_penalty_and_a_turn_and_changes_nothing() -> None:
    env = frozen_lake(format_penalty=-0.15, max_steps=2)
    observation, info = env.reset(1)
    first = env.step("Right")  # not between the tags
    assert first[:4] == (observation, -0.15, False, False)
    assert first[4]["state_key"] == info["state_key"]
    assert not first[4]["action_is_valid"] and not first[4]["action_is_effective"] and "success" not in first[4]
    second = env.step("<answer>North</answer>")
    assert second[:4] == (observation, -0.15, False, True)
    assert second[4]["success"] is False


def test_the_state_key_tells_states_apart_and_recognises_them() -> None:
    env = lake(["SFF", "FFF", "FFG"])
    keys = [env.step(f"<answer>{way}</answer>")[4]["state_key"] for way in ("Right", "Left", "Right", "Down")]
    assert keys[0] == keys[2] and len(set(keys)) == 3


def test_compact_form_and_symbols() -> None:
    env = lake(["SFF", "FHF", "FFG"], observation="compact", grid_vocabulary={"player": "@", "frozen": "."}, **LETTERS)
    observation, _, _, _, info = env.step("d")
    assert observation == "1,0 .../@O./..G"
    assert info["action_is_valid"]
    assert "@ you, . ice" in env.instructions and "L, D, R, U" in env.instructions


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"size": 1}, "size = 1: must be >= 2"),
        ({"p": 0}, "p = 0: must be > 0"),
        ({"observation": "picture"}, "must be one of grid, compact"),
        ({"grid_vocabulary": {"playr": "x"}}, "did you mean player?"),
        ({"grid_vocabulary": {"player": "xy"}}, "must be one character"),
        ({"grid_vocabulary": {"player": "G"}}, "have the same symbol"),
        ({"action_pattern": "("}, "is not a regular expression"),
        ({"action_pattern": "x"}, "has no group"),
        ({"action_lookup": {"n": "North"}}, "must be among Left, Down, Right, Up"),
        ({"format_penalty": 0.1}, "must be <= 0"),
        ({"max_steps": 0}, "must be >= 1"),
    ],
)
def test_bad_configurations(config: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        frozen_lake(**config)
    assert message in str(error.value)


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
