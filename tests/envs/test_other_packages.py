"""Adapters of other projects' environments. The packages themselves are not installed here: what is tested is what is said
without them, and what the GEM adapter adds to an environment that draws from the global random generators."""

import random
import sys
import types

import numpy as np
import pytest

from roll.configs.problems import ConfigError
from roll.envs.gem import GemEnv
from roll.envs.registry import make_env


@pytest.mark.parametrize(
    ("env_type", "env_config", "package", "fix"),
    [
        ("gem", {"env_id": "game:Sokoban-v0-easy"}, "gem", "pip install gem-llm"),
        ("verifiers", {"taskset": "gsm8k"}, "verifiers.v1", "pip install 'verifiers>=0.4'"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, env_type: str, env_config: dict[str, object], package: str, fix: str
) -> None:
    monkeypatch.setitem(sys.modules, package.split(".")[0], None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError) as error:
        make_env(env_type, env_config)
    assert f"fix: {fix}" in str(error.value)


class Dice:
    """Draws in later steps, as GEM's games do."""

    def reset(self, seed: int) -> tuple[str, dict[str, str]]:
        random.seed(seed)
        np.random.seed(seed)
        return "roll", {"suffix": "again?"}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, str]]:
        drawn = random.random() + np.random.rand()
        return f"{drawn:.6f}", 1.0, action == "stop", False, {"suffix": "again?"}

    def sample_random_action(self) -> str:
        return str(random.random())


@pytest.fixture
def gem_package(monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("gem")
    package.make = lambda env_id, **args: Dice()
    monkeypatch.setitem(sys.modules, "gem", package)


def test_environments_in_turn_do_not_disturb_each_other(gem_package: None) -> None:
    alone = GemEnv("dice")
    alone.reset(5)
    expected = [alone.step("go")[0] for _ in range(4)]

    before = random.getstate(), np.random.get_state()[1].tolist()
    first, second = GemEnv("dice"), GemEnv("dice")
    first.reset(5)
    second.reset(6)
    seen = []
    for _ in range(4):
        seen.append(first.step("go")[0])
        second.step("go")
        first.sample_action(random.Random(1))
    assert seen == expected
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before, "nor the process around them"
    assert second.reset(5)[0] == "roll" and [second.step("go")[0] for _ in range(4)] == expected


def test_large_seeds_and_the_end_of_an_episode(gem_package: None) -> None:
    env = GemEnv("dice", success_reward=0.5)
    observation, info = env.reset(2**62 + 1)
    assert (observation, info) == ("roll", {"state_key": "roll\nagain?", "suffix": "again?"})
    assert "success" not in env.step("go")[4]
    assert env.step("stop")[4]["success"] is True
