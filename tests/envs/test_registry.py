"""From `env_type` and `env_config` to an environment, or to one clear error."""

import subprocess
import sys
from pathlib import Path

import pytest

from roll.core.configs.problems import ConfigError
from roll.envs.environment import is_async, is_thread_safe
from roll.envs.registry import BUILT_IN, env_class, make_env


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def test_every_built_in_name_is_a_class() -> None:
    """Those of other packages import them only when they are made."""
    assert all(env_class(name).__module__.startswith("roll.envs.") for name in BUILT_IN)


def test_ones_own_class() -> None:
    env = make_env("envs_under_test.Moody", {"refuse": False})
    assert not is_async(env) and is_thread_safe(env)
    assert is_async(env_class("envs_under_test.Sleeper"))
    assert not is_thread_safe(env_class("envs_under_test.Selfish"))


@pytest.mark.parametrize(
    ("env_type", "env_config", "message"),
    [
        ("frozen_lak", {}, "env_type = 'frozen_lak': is not a known environment; fix: did you mean frozen_lake? known: "),
        ("no_such_package.Env", {}, "cannot be imported: No module named"),
        ("envs_under_test.RELEASED", {}, "it is neither a class nor a function"),
        ("pathlib.Path", {}, "it has no reset and no step and no close"),
        ("envs_under_test.OneOfTwo", {}, "one of reset and step is a coroutine function, the other is not"),
        ("envs_under_test.Moody", {"refuse": True}, "refuses it: ValueError: refused"),
        (
            "frozen_lake",
            {"is_slipery": True},
            "env_config.is_slipery = True: FrozenLake has no such key; fix: did you mean is_slippery?",
        ),
        ("frozen_lake", {"size": 99}, "env_config.size = 99: must be >= 2"),
        ("frozen_lake", {"size": "4"}, "env_config.size = '4': must be a whole number; fix: e.g. 4"),
        (
            "os.path.basename",
            {"p": "x"},
            "env_type = 'os.path.basename': returns str, which is no gymnasium.Env; fix: ",
        ),
        ("gymnasium.make_vec", {"id": "CartPole-v1", "num_envs": 2}, "has 2 sub-environments, which are stepped together: "),
        ("envs_under_test.Waiting", {}, "it derives from gymnasium.Env, whose step is no coroutine function"),
        ("gem", {}, "env_config.env_id = (missing): GemEnv needs it"),
    ],
)
def test_errors_name_key_value_and_fix(env_type: str, env_config: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_env(env_type, env_config)
    assert message in str(error.value)
    assert len(error.value.problems) == 1


def test_all_wrong_keys_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        make_env("sokoban", {"boxes": 1, "room": [5, 5]}, "custom_envs.S.env_config")
    assert [problem.key for problem in error.value.problems] == [
        "custom_envs.S.env_config.boxes",
        "custom_envs.S.env_config.room",
    ]


def test_the_registry_imports_no_environment_and_no_torch() -> None:
    """A worker's environment process loads what its environment needs, and nothing else."""
    program = "import sys, roll.envs.executors; print({'torch', 'gymnasium', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
