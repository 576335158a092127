"""Any environment of gymnasium by its id: what is shown, what is played, what is refused."""

import random

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from roll.configs.problems import ConfigError
from roll.envs.adapters import described, written
from roll.envs.check import check_env
from roll.envs.registry import make_env


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Blackjack-v1", "CliffWalking-v1", "Taxi-v4", "FrozenLake-v1", "Acrobot-v1"])
def test_env_check_passes(env_id):
    report = check_env("gymnasium", {"env_id": env_id, "max_steps": 60}, episodes=5)
    assert report.ok, report.errors
    assert report.agents["random"].invalid_share == 0.0
    assert "oracle" not in report.agents and not any("oracle" in note for note in report.notes)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Blackjack-v1", "CliffWalking-v1", "MountainCar-v0"])
def test_rewards_and_endings_are_gymnasiums(env_id):
    """The same seed and actions, played through gymnasium itself."""
    env, game, rng = make_env("gymnasium", {"env_id": env_id, "max_steps": 50}), gymnasium.make(env_id), random.Random(0)
    for seed in range(10):
        observation, _ = env.reset(seed)
        shown, _ = game.reset(seed=seed)
        for _ in range(50):
            assert observation == written(game.observation_space, shown, 3)
            action = rng.randrange(int(game.action_space.n))
            observation, reward, terminated, truncated, _ = env.step(f"<answer>{action}</answer>")
            shown, expected, over, _, _ = game.step(action)
            assert (reward, terminated) == (float(expected), over)
            if terminated or truncated:
                break


def test_actions_have_names_and_an_unreadable_one_changes_nothing():
    env = make_env("gymnasium", {"env_id": "CartPole-v1", "actions": ["left", "right"], "format_penalty": -0.5})
    assert "Choose one action: left, right" in env.instructions and "4 numbers" in env.instructions
    first, _ = env.reset(3)
    again, reward, _, _, info = env.step("<answer>0</answer>")
    assert (again, reward, info["action_is_valid"], info["action_is_effective"]) == (first, -0.5, False, False)
    moved, reward, _, _, info = env.step("I lean. <answer>Right</answer>")
    assert (reward, info["action_is_valid"], info["action_is_effective"]) == (1.0, True, True)
    game = gymnasium.make("CartPole-v1")
    game.reset(seed=3)
    assert moved == written(game.observation_space, game.step(1)[0], 3)


def test_success_is_the_threshold_of_gymnasium_or_ones_own():
    def balanced(**config):
        """Always against the fall: long enough for a small threshold, too short for that of gymnasium."""
        env = make_env("gymnasium", {"env_id": "CartPole-v1", **config})
        env.reset(0)
        over, info = False, {}
        while not over:
            angle = env._shown[2] + env._shown[3]
            _, _, terminated, truncated, info = env.step(f"<answer>{int(angle > 0)}</answer>")
            over = terminated or truncated
        return info["success"], truncated

    assert balanced(max_steps=40) == (False, True)
    assert balanced(max_steps=40, success_reward=40) == (True, True)


class Shifted(gymnasium.Env):
    """Actions that do not begin at 0, and an observation of parts."""

    action_space = spaces.Discrete(2, start=5)
    observation_space = spaces.Dict({"word": spaces.Text(8), "place": spaces.Tuple((spaces.Discrete(4), spaces.MultiBinary(2)))})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken = 0
        return self._shown(), {}

    def _shown(self):
        return {"word": "go", "place": (self.taken % 4, np.array([0, 1], dtype=np.int8))}

    def step(self, action):
        assert self.action_space.contains(action)
        self.taken = action
        return self._shown(), float(action == 6), action == 6, False, {}


class Picture(Shifted):
    observation_space = spaces.Box(0, 255, (32, 32, 3), np.uint8)


class Continuous(Shifted):
    action_space = spaces.Box(-1, 1, (1,))


@pytest.fixture(scope="module", autouse=True)
def registered():
    for cls in (Shifted, Picture, Continuous):
        gymnasium.register(f"test/{cls.__name__}-v0", cls)
    yield
    for cls in (Shifted, Picture, Continuous):
        del gymnasium.registry[f"test/{cls.__name__}-v0"]


def test_parts_stand_on_lines_and_actions_begin_where_the_space_says():
    env = make_env("gymnasium", {"env_id": "test/Shifted-v0"})
    assert "Choose one action: 5, 6" in env.instructions
    assert "place: a number from 0 to 3; 2 whole numbers" in env.instructions
    assert env.reset(0)[0].splitlines() == ["place: 0; 0, 1", "word: go"]
    _, reward, terminated, _, info = env.step("<answer>6</answer>")
    assert (reward, terminated, info["success"]) == (1.0, True, True)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"env_id": "test/Picture-v0"}, "env_config.env_id = 'test/Picture-v0': its observations cannot be written down: Box"),
        ({"env_id": "test/Continuous-v0"}, "its actions are Box"),
        ({"env_id": "CartPole-v99"}, "gymnasium refuses it"),
        (
            {"env_id": "CartPole-v1", "env_kwargs": {"gravity": 1}},
            "env_config.env_kwargs = {'gravity': 1}: gymnasium cannot make it",
        ),
        ({"env_id": "CartPole-v1", "actions": ["left"]}, "has 1 names; there are 2 actions"),
        ({"env_id": "CartPole-v1", "actions": ["go", "Go"]}, "two names are the same"),
        ({"env_id": "CartPole-v1", "digits": 0}, "digits"),
        ({"env_id": "CartPole-v1", "max_steps": 0}, "max_steps"),
        ({}, "env_config.env_id = (missing)"),
    ],
)
def test_what_text_cannot_play_is_refused_by_key(config, told):
    with pytest.raises(ConfigError) as error:
        make_env("gymnasium", config)
    assert told in str(error.value)


def test_numbers_are_written_as_they_are():
    box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    assert written(box, np.array([0.123456, -7.0], np.float32), 3) == "0.123, -7"
    assert written(spaces.Box(0, 9, (2, 2), np.int64), np.array([[1, 2], [3, 4]]), 3) == "1, 2, 3, 4"
    assert written(spaces.Discrete(3), np.int64(2), 3) == "2"
    assert described(spaces.Box(-1, 1, (2,), np.float32)) == "2 numbers, each -1 to 1"
