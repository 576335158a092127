"""Any environment of gymnasium by its id: what is shown, what is played, what is refused."""

import inspect
import random
import sys
import types

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from roll.core.configs.problems import ConfigError
from roll.envs.check import check_env
from roll.envs.registry import env_class, make_env
from roll.envs.space_text import described, shown


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
        seen, _ = game.reset(seed=seed)
        for _ in range(50):
            assert observation == shown(game.observation_space, seen, 3)
            action = rng.randrange(int(game.action_space.n))
            observation, reward, terminated, truncated, _ = env.step(f"<answer>{action}</answer>")
            seen, expected, over, _, _ = game.step(action)
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
    assert moved == shown(game.observation_space, game.step(1)[0], 3)


def test_success_is_what_the_environment_says_or_gymnasiums_threshold_or_unknown():
    def balanced(**config):
        """Always against the fall: long enough for a small threshold, too short for that of gymnasium."""
        env = make_env("gymnasium", {"env_id": "CartPole-v1", **config})
        env.reset(0)
        over, info = False, {}
        while not over:
            angle = env.env.unwrapped.state[2] + env.env.unwrapped.state[3]
            _, _, terminated, truncated, info = env.step(f"<answer>{int(angle > 0)}</answer>")
            over = terminated or truncated
        return info["success"], truncated

    assert balanced(max_steps=40) == (False, True)
    lake = make_env("gymnasium", {"env_id": "FrozenLake-v1", "env_kwargs": {"is_slippery": False}})
    lake.reset(0)
    steps = [lake.step(f"<answer>{way}</answer>") for way in (1, 1, 2, 1, 2, 2)]
    assert [step[4].get("success") for step in steps] == [None] * 5 + [True], "0.7 is gymnasium's threshold"
    env = make_env("gymnasium", {"env_id": "CliffWalking-v1", "max_steps": 1})
    env.reset(0)
    assert "success" not in env.step("<answer>0</answer>")[4]


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
    observation_space = spaces.Box(0, 1, (32, 32, 3), np.float32)


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
    assert "place: a number from 0 to 3; 2 whole numbers, each 0 to 1" in env.instructions
    assert env.reset(0)[0].splitlines() == ["place: 0; 0, 1", "word: go"]
    _, reward, terminated, _, info = env.step("<answer>6</answer>")
    assert (reward, terminated, "success" in info) == (1.0, True, False)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            {"env_id": "test/Picture-v0"},
            "env_type = 'gymnasium': the observation_space of test/Picture-v0 has Box(0.0, 1.0, (32, 32, 3), float32), which "
            "text cannot show; fix: an observation_space of Text, Discrete,",
        ),
        (
            {"env_id": "test/Continuous-v0"},
            "the action_space of test/Continuous-v0 has Box(-1.0, 1.0, (1,), float32), which text cannot say; fix: an "
            "action_space of Text, Discrete, MultiDiscrete, MultiBinary, and Tuple and Dict of these; gymnasium.wrappers.",
        ),
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
    assert shown(box, np.array([0.123456, -7.0], np.float32), 3) == "0.123, -7"
    assert shown(spaces.Box(0, 9, (2, 2), np.int64), np.array([[1, 2], [3, 4]]), 3) == "1, 2, 3, 4"
    assert shown(spaces.Discrete(3), np.int64(2), 3) == "2"
    assert described(spaces.Box(-1, 1, (2,), np.float32)) == "2 numbers, each -1 to 1"


class Cooking(gymnasium.Env):
    """Of a class, by its path: parts, metrics, wrappers, and nothing of this project."""

    def __init__(self, dishes=2, max_steps=None):
        self.dishes, self.limit = dishes, max_steps
        self.action_space = spaces.Dict({"heat": spaces.MultiDiscrete([3, 3]), "word": spaces.Text(4)})
        self.observation_space = spaces.Text(20, charset="dish 0123456789")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.done, self.wanted = 0, int(self.np_random.integers(3))
        return f"dish 0 {self.wanted}", {"unplain": np.zeros(3)}

    def step(self, action):
        assert self.action_space.contains(action)
        self.done += 1
        right = bool((action["heat"] == self.wanted).all() and action["word"] == "serve"[:4])
        info = {"tasted": np.float32(0.5), "who": None, "success": right}
        return f"dish {self.done} {self.wanted}", np.float64(right), self.done == self.dishes, self.done == self.limit, info


class Greeting(gymnasium.Env):
    """Says more than its spaces do."""

    instructions, format_penalty = "Greet.", -0.5
    action_space, observation_space = spaces.Text(20, charset="abcdefghijklmnopqrstuvwxyz "), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {"suffix": "politely", "state_key": "start"}

    def step(self, action):
        return 1, float(action == "good day"), True, False, {"action_is_valid": action != "mumble", "state_key": "end"}

    def sample_action(self, rng):
        return rng.choice(["good day", "mumble"])

    def oracle_action(self):
        return "good day"


def limited(dishes: int = 9):
    return gymnasium.wrappers.TimeLimit(Cooking(dishes), 3)


def renamed_path(name):
    return f"{__name__}.{name}"


@pytest.fixture
def importable(monkeypatch):
    """This module, by a name that an environment's process could import, too."""
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or types.ModuleType(__name__))
    for each in (Cooking, Greeting, limited):
        monkeypatch.setattr(sys.modules[__name__], each.__name__, each, raising=False)


def test_a_class_of_gymnasium_is_an_environment_as_it_is(importable):
    env = make_env(renamed_path("Cooking"), {"dishes": 2, "format_penalty": -0.25})
    assert env.instructions.startswith(
        "Of a class, by its path: parts, metrics, wrappers, and nothing of this project.\n"
        "You see: a text.\nYour action is JSON: heat: 2 whole numbers, each 0 to 2; word: a text."
    )
    observation, info = env.reset(5)
    wanted = int(observation[-1])
    assert observation == f"dish 0 {wanted}" and set(info) == {"suffix", "state_key"}
    wrong = env.step("<answer>{}</answer>")
    assert wrong[:4] == (observation, -0.25, False, False) and not wrong[4]["action_is_valid"] and "success" not in wrong[4]
    action = f'<answer>{{"heat": [{wanted}, {wanted}], "word": "serv"}}</answer>'
    _, reward, terminated, truncated, info = env.step(action)
    assert (reward, type(reward), terminated, truncated) == (1.0, float, False, False)
    assert info["tasted"] == 0.5 and "who" not in info and info["action_is_effective"]
    assert env.step("<answer>{}</answer>")[1] == -0.25
    assert env.step(action)[2:4] == (True, False)
    with pytest.raises(RuntimeError, match="outside an episode"):
        env.step(action)


def test_what_an_environment_says_itself_counts(importable):
    env = make_env(renamed_path("Greeting"), {})
    assert env.instructions == "Greet.\nWrite a text of 1 to 20 characters among ' abcdefghijklmnopqrstuvwxyz'."
    assert env.reset(0) == ("0", {"suffix": "politely", "state_key": "start"})
    assert env.step("GOOD DAY")[1] == -0.5 and {env.sample_action(random.Random(i)) for i in range(9)} == {"good day", "mumble"}
    _, _, terminated, _, info = env.step("mumble")
    assert terminated and not info["action_is_valid"] and info["state_key"] == "end" and "success" not in info
    report = check_env(renamed_path("Greeting"), {}, episodes=4)
    assert report.ok and report.agents["oracle"].mean_return == 1.0 and report.agents["oracle"].success_share is None
    assert any("success_at" in note for note in report.notes)


def test_truncation_is_the_environments_or_a_wrappers_and_turns_that_are_lost_count(importable):
    for env_type, config, turns, own in (
        ("Cooking", {"dishes": 9, "max_steps": 4}, 4, True),  # a key of the class's own
        ("limited", {}, 3, True),  # a function that wraps it
        ("limited", {"max_steps": 2}, 2, False),
    ):
        env = make_env(renamed_path(env_type), config)
        env.reset(0)
        steps = [env.step('<answer>{"heat": [0, 0], "word": "a"}</answer>') for _ in range(turns)]
        assert [step[2:4] for step in steps] == [(False, False)] * (turns - 1) + [(False, True)], env_type
        assert steps[-1][4]["success"] is False and own == (config.get("max_steps") != 2)
    parameters = inspect.signature(env_class(renamed_path("limited"))).parameters
    assert {"dishes", "action_pattern", "max_steps", "format_penalty"} <= set(parameters) and "env" not in parameters


def test_env_check_asks_gymnasiums_checker_too(importable):
    report = check_env(renamed_path("Cooking"), {}, episodes=3)
    assert report.ok, report.errors
    assert report.agents["random"].invalid_share == 0.0
    Cooking.reset, kept = lambda self, *, seed=None, options=None: ("WRONG", {}), Cooking.reset
    try:
        Cooking.done, Cooking.wanted = 0, 0
        errors = check_env(renamed_path("Cooking"), {}, episodes=2).errors
    finally:
        Cooking.reset = kept
    assert any("gymnasium's checker refuses it" in error and "not within the observation space" in error for error in errors)


def test_what_an_environment_draws_is_shown_instead():
    env = make_env("gymnasium", {"env_id": "Taxi-v4", "env_kwargs": {"render_mode": "ansi"}})
    observation, info = env.reset(3)
    assert observation.startswith("+---------+") and "\x1b" not in observation and info["state_key"] == observation
    assert env.instructions.startswith("Play Taxi-v4.\nChoose one action: 0, 1, 2, 3, 4, 5.")
