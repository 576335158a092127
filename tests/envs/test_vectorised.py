"""A vectorised environment of gymnasium with one sub-environment is played as that sub-environment; one with more is refused."""

import asyncio
import importlib
import multiprocessing
import random
from pathlib import Path

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from living import lives

from roll.core.configs.problems import ConfigError
from roll.core.errors import EnvFailure
from roll.envs.check import check_env
from roll.envs.host import EnvHost
from roll.envs.registry import make_env

CART_POLE_VECTOR = "gymnasium.envs.classic_control.cartpole.CartPoleVectorEnv"
WAITER, WAITERS = "envs_under_test.Waiter", "envs_under_test.waiters"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def envs_under_test():
    return importlib.import_module("envs_under_test")


def played(env, seeds, texts):
    """All that an agent, and who trains it, gets to see of some episodes."""
    seen = []
    for seed in seeds:
        seen.append(env.reset(seed))
        for text in texts:
            seen.append(env.step(text))
            if seen[-1][2] or seen[-1][3]:
                break
    return seen


SERVED = [
    '<answer>{"table": 2, "trays": [1, 1], "word": "here"}</answer>',
    "nothing",
    '<answer>{"table": 1, "trays": [1, 0], "word": "a"}</answer>',
    '<answer>{"table": 3, "trays": [1, 1], "word": "there"}</answer>',
]


@pytest.mark.parametrize("as_list", [False, True], ids=["info", "list of infos"])
@pytest.mark.parametrize(
    ("mode", "in_process"),
    [*((mode.name, True) for mode in AutoresetMode), ("SAME_STEP", False), ("DISABLED", False)],
)
def test_it_is_the_sub_environment_in_every_autoreset_mode(mode, in_process, as_list):
    """Observations, rewards, ends, success and what is said, the last step of an episode included."""
    vector = make_env(WAITERS, {"mode": mode, "in_process": in_process, "as_list": as_list, "format_penalty": -0.5})
    plain = make_env(WAITER, {})
    try:
        expected = played(plain, range(5), SERVED)
        assert played(vector, range(5), SERVED) == expected
    finally:
        vector.close()
    last = [step[4] for step in expected if len(step) == 5 and step[2]]
    assert {info["success"] for info in last} == {True, False} and all(info["tip"] == 0.25 for info in last)
    assert all("turn" not in info for info in last), "what this step did not say"


@pytest.mark.parametrize(
    ("env_type", "env_config"),
    [
        ("gymnasium.make_vec", {"id": "CartPole-v1", "max_episode_steps": 30}),
        ("gymnasium.make_vec", {"id": "CartPole-v1", "vectorization_mode": "sync"}),
        (CART_POLE_VECTOR, {"max_episode_steps": 30}),
    ],
)
def test_environments_of_gymnasium_are_fit(env_type, env_config):
    """The same seed gives the same episode in another instance, gymnasium's own checker finds nothing, and a pole can be held."""
    report = check_env(env_type, {"max_steps": 30, **env_config}, episodes=5)
    assert report.ok, report.errors
    assert report.agents["random"].invalid_share == 0.0 and 8 < report.agents["random"].mean_return < 30


def test_each_episode_is_a_function_of_its_seed():
    """A vector's own generator is seeded, too: other episodes in between change nothing."""
    env, moves = make_env(CART_POLE_VECTOR, {}), [f"<answer>{move}</answer>" for move in random.Random(0).choices("01", k=40)]
    first = played(env, [7], moves)
    assert played(env, [8, 7], moves)[-len(first) :] == first
    assert env.instructions.startswith("Play CartPoleVectorEnv. You see: 4 numbers")


def test_an_id_that_has_a_vectorised_environment_alone_is_an_id_as_others():
    gymnasium.register(
        "test/OnlyVector-v0", vector_entry_point=CART_POLE_VECTOR.replace(".CartPole", ":CartPole"), reward_threshold=4
    )
    try:
        env = make_env("gymnasium", {"env_id": "test/OnlyVector-v0", "env_kwargs": {"max_episode_steps": 5}})
        assert env.instructions.startswith("Play test/OnlyVector-v0.")
        *_, (_, _, terminated, truncated, info) = played(env, [0], ["<answer>0</answer>", "<answer>1</answer>"] * 3)
        assert (terminated, truncated, info["success"]) == (False, True, True), (
            "the limit is the vector's, the threshold gymnasium's"
        )
        with pytest.raises(ConfigError, match="has 2 sub-environments"):
            make_env("gymnasium", {"env_id": "test/OnlyVector-v0", "env_kwargs": {"num_envs": 2}})
    finally:
        del gymnasium.registry["test/OnlyVector-v0"]


def test_what_the_sub_environment_says_of_itself_counts():
    env = make_env(WAITERS, {})
    assert env.instructions.startswith("Serve what is wanted.\nYour action is JSON")
    env.reset(0)
    assert env.step("nothing")[1] == -0.5
    assert [env.step(env.oracle_action())[1] for _ in range(3)] == [2.0] * 3
    drawn = make_env("gymnasium.make_vec", {"id": "Taxi-v4", "render_mode": "ansi"})
    assert drawn.reset(3)[0].startswith("+---------+") and drawn.max_steps == 200


@pytest.mark.parametrize("in_process", [True, False], ids=["sync", "async"])
def test_more_than_one_is_refused_with_the_way_out(in_process):
    with pytest.raises(ConfigError) as refused:
        make_env(WAITERS, {"num_envs": 4, "in_process": in_process}, "custom_envs.Waiter.env_config")
    assert str(refused.value) == (
        f"custom_envs.Waiter.env_type = '{WAITERS}': has 4 sub-environments, which are stepped together: each would wait for "
        "the slowest answer of all; fix: make it with num_envs 1; num_env_groups * group_size of it are played side by side, "
        "each at its own pace"
    )
    assert not multiprocessing.active_children(), "processes of a vector that is not played"


def test_what_gymnasium_does_wrong_between_processes_is_refused():
    """As of gymnasium 1.4.0: the day the first half of this fails, a refusal can go."""
    vector = AsyncVectorEnv([envs_under_test().Waiter])
    ((shown,), _), _ = vector.reset(seed=0)
    vector.close()
    assert shown != "welcome", "a Text in shared memory stays what it was"
    with pytest.raises(ConfigError, match=r"shows no text: .*shared_memory false, autoreset_mode Disabled"):
        make_env(WAITERS, {"in_process": False, "shared_memory": True})

    vector = gymnasium.make_vec(
        "FrozenLake-v1", vectorization_mode="async", vector_kwargs={"shared_memory": False}, is_slippery=False
    )
    for _ in range(2):
        vector.reset(seed=0)
        seen = [int(vector.step(np.array([move]))[0][0]) for move in (1, 2)]
    vector.close()
    assert seen == [0, 1], "moves down and right lead to 4 and 5, a hole; the first of a second episode is lost"
    with pytest.raises(ConfigError, match=r"loses the first action of an episode: .*autoreset_mode Disabled"):
        make_env(WAITERS, {"in_process": False})


def test_numbers_in_shared_memory_are_those_of_the_sub_environment():
    lake = {"id": "FrozenLake-v1", "is_slippery": False}
    vector = make_env("gymnasium.make_vec", {**lake, "vectorization_mode": "async"})
    plain = make_env("gymnasium.make", lake)
    moves = [f"<answer>{move}</answer>" for move in (1, 1, 2, 2)]
    assert played(vector, range(3), moves) == played(plain, range(3), moves)
    vector.close()


def test_one_that_hangs_in_a_process_of_its_own_costs_its_episode_and_leaves_no_process():
    async def play():
        host = EnvHost("process", step_timeout_s=2.0)
        env = await host.open("tag", WAITERS, {"in_process": False, "mode": "DISABLED"})
        await env.reset(0)
        process = psutil.Process(env.pid)
        family = [process, *process.children(recursive=True)]
        assert len(family) >= 2, "the sub-environment has a process"
        with pytest.raises(EnvFailure, match="no answer within 2 s"):
            await env.step('<answer>{"table": 1, "trays": [1, 0], "word": "sleep"}</answer>')
        observation, _ = await env.reset(1)
        assert observation.startswith("welcome") and env.pid != process.pid
        await host.close()
        return family

    assert not [process for process in asyncio.run(play()) if lives(process)]
