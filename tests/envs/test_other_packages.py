"""Adapters of other projects' environments. The packages themselves are not installed here: what is tested is what is said
without them, and what the GEM adapter adds to an environment that draws from the global random generators."""

import asyncio
import inspect
import random
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from roll.core.configs.problems import ConfigError
from roll.core.errors import EnvFailure
from roll.envs.check import check_env
from roll.envs.gem import GemEnv
from roll.envs.host import EnvHost
from roll.envs.registry import env_class, make_env


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gem", None)
    with pytest.raises(ConfigError) as error:
        make_env("gem", {"env_id": "game:Sokoban-v0-easy"})
    assert "fix: roll env add gem-llm" in str(error.value)


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


THEIRS = """
import random
import gem
from gem import Env
from roll.pipeline.agentic.env.parse_action_utils import default_parser_action_func
from roll.utils.random_utils import all_seed
from roll.utils.constants import EpisodeStopReason

class Guess(Env):
    def __init__(self, most=3, env_instruction=None, **kwargs):
        self.most, self.names = most, {0: "Low", 1: "High"}

    def reset(self, seed=None):
        Env.reset(self, seed)
        with all_seed(seed):
            self.wanted, self.turns = random.randrange(2), 0
        return "Low or High?", {"env_instruction": "Guess."}

    def step(self, action):
        read = default_parser_action_func(action, "<answer>(.*?)</answer>", self.names, ("<|im_end|>",))
        self.turns += 1
        right = np.bool_(read["action"] == self.wanted)
        metrics = {"action_is_valid": read["action"] is not None, "action_is_effective": True, "success": right}
        info = {"metrics": metrics, "metrics_agg_mode": {"success": "last"}, "suffix": None, **read}
        return "again", float(random.random()), bool(right), self.turns >= self.most, info

import numpy as np
"""


@pytest.fixture
def their_guess(gem_package: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    core = types.ModuleType("gem.core")

    class Env:
        def reset(self, seed: int | None = None) -> None:
            random.seed(seed)
            np.random.seed(seed)

        def sample_random_action(self) -> str:
            raise NotImplementedError

    Env.__module__ = "gem.core"
    sys.modules["gem"].Env = core.Env = Env
    (tmp_path / "their_guess.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(tmp_path)
    return "their_guess.Guess"


def test_an_environment_that_was_written_for_roll_is_played_as_it_stands(their_guess: str) -> None:
    """Rules come with the first observation, metrics count, numpy's values become Python's, and the rest of `info` stays out."""
    before = random.getstate()
    env = make_env(their_guess, {"most": 5})
    observation, info = env.reset(2**62 + 1)
    assert (observation, info) == ("Guess.\nLow or High?", {"suffix": "", "state_key": "Low or High?\n"})
    steps = [env.step(text) for text in ("<answer>low</answer>", "<answer>High</answer>", "Low")]
    assert [step[4]["action_is_valid"] for step in steps] == [True, True, False]
    assert sorted(step[4]["success"] for step in steps) == [False, False, True]
    assert all(type(value) is bool for step in steps for name, value in step[4].items() if name not in ("suffix", "state_key"))
    assert random.getstate() == before
    env.close()


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        (r"<answer>(.*?)</answer>", "<answer>High</answer>"),
        (r"<think>(.*?)</think>\s*<answer>(.*?)</answer>", "<think>High</think><answer>High</answer>"),
        (r"^(.*)$", "High"),
        (None, "High"),
    ],
)
def test_a_random_agent_writes_actions_as_they_are_looked_for(their_guess: str, pattern: str | None, written: str) -> None:
    """ROLL's environments offer the bare name, which they themselves would not find."""
    env = make_env(their_guess, {})
    env._env.sample_random_action, env._env.action_pattern = lambda: "High", pattern
    assert env.sample_action(random.Random(1)) == written


def test_its_constructor_keeps_its_arguments(their_guess: str) -> None:
    assert "most=3" in str(inspect.signature(env_class(their_guess)))
    report = check_env(their_guess, {}, episodes=2)
    assert report.ok, report.errors


TALKING = """
from gem import Env
from roll.utils.constants import EpisodeStopReason

class Talking(Env):
    env_reset_failed = False

    def __init__(self, broken=False):
        self.env_reset_failed = broken

    def reset(self, seed=None):
        Env.reset(self, seed)
        self.messages = [{"role": "system", "content": "Talk."}, {"role": "user", "content": "hello"}]
        tool = {"type": "function", "function": {"name": "look", "description": "", "parameters": {}}}
        return self.messages, {"tools": [tool], "error_msg": "", "failure_mode": "none"}

    def step(self, action):
        if isinstance(action, EpisodeStopReason):
            return self.messages, 0.25, True, True, {}
        self.messages += [{"role": "assistant", "content": action}, {"role": "user", "content": "and?"}]
        return self.messages, 1.0, False, False, {"metrics": {"success": False}, "metrics_agg_mode": {}}
"""


def test_an_environment_of_messages_that_was_written_for_roll_is_played_as_it_stands(
    their_guess: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """agent_native_env_manager.py: messages and tools come from reset; one without room is told so by an action that is none."""
    (tmp_path / "their_talk.py").write_text(TALKING)

    async def played() -> None:
        host = EnvHost("inline")
        handle = await host.open("t", "their_talk.Talking", {})
        observation, info = await handle.reset(1)
        assert observation[-1] == {"role": "user", "content": "hello"} and info["tools"][0]["function"]["name"] == "look"
        following, reward, *_, more = await handle.step("hi")
        assert [message["role"] for message in following] == ["system", "user", "assistant", "user"] and reward == 1.0
        assert more["success"] is False and len(observation) == 2, "what was shown before is as it was"
        assert await handle.cut_off() == 0.25
        broken = await host.open("t", "their_talk.Talking", {"broken": True})
        with pytest.raises(EnvFailure, match="could not be reset"):
            await broken.reset(1)
        await host.close()

    asyncio.run(played())
