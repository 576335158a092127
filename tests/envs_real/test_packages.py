"""What the packages do under our adapters."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roll.cli.audit import audit
from roll.cli.env import main
from roll.core.configs.agentic import EnvConfig
from roll.core.errors import EnvFailure
from roll.envs.check import EnvReport, check_env
from roll.envs.environment_worker import environment_host
from roll.platform.ports import free_port

CODE = Path(__file__).parent / "code"
Offers = Callable[[str], Any]


def checked(python: Callable[[str], str], package: str, env_type: str, env_id: str, **config: object) -> EnvReport:
    return check_env(env_type, {"env_id": env_id, **config}, episodes=3, python=python(package))


def test_reasoning_gym_has_its_families(offers: Offers) -> None:
    assert len(offers("reasoning-gym")) >= 100


@pytest.mark.parametrize("family", ["leg_counting", "coin_flip", "word_sorting", "basic_arithmetic", "rubiks_cube"])
def test_families_keep_the_contract(family: str, python: Callable[[str], str]) -> None:
    report = checked(python, "reasoning-gym", "reasoning_gym", family)
    assert report.ok, report.errors
    assert family == "rubiks_cube" or report.agents["oracle"].success_share == 1.0, "it has no reference answers"


def test_the_audit_finds_coin_flip(python: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    """A prefix is divided by the shorter length: "0" is the beginning of most answers, and paid in full."""
    python("reasoning-gym")
    assert audit(["reasoning-gym:coin_flip", "--tasks", "20", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["targets"]
    assert any(problem.startswith("pays for nonsense: ") for problem in found["problems"])
    assert found["players"]["fragment"]["mean"] > 0.8


def test_its_tasks_are_prompts_with_its_own_scorer(
    python: Callable[[str], str], capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    where = python("reasoning-gym")
    assert main(["prompts", "reasoning-gym:leg_counting", "--count", "12"]) == 0
    (tmp_path / "legs.jsonl").write_text(capsys.readouterr().out)
    reward = [
        "roll.pipeline.rlvr.rewards.environment_reward_worker.EnvironmentRewardWorker",
        "--prompts",
        str(tmp_path / "legs.jsonl"),
    ]
    assert audit([*reward, "--config", "env=reasoning_gym", f"python={where}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["targets"][0]["accepted"] == 1.0


def test_textarena_has_fifty_games_without_a_download(offers: Offers) -> None:
    assert len(offers("textarena")) >= 50


@pytest.mark.parametrize("game", ["GuessTheNumber-v0", "TowerOfHanoi-v0", "Minesweeper-v0-small", "TicTacToe-v0"])
def test_games_keep_the_contract(game: str, python: Callable[[str], str]) -> None:
    report = checked(python, "textarena", "textarena", game)
    assert report.ok, report.errors


@pytest.mark.parametrize("env_id", ["game:GuessTheNumber-v0-easy", "game:Minesweeper-v0-easy", "rg:leg_counting"])
def test_gem_keeps_the_contract(env_id: str, python: Callable[[str], str]) -> None:
    report = checked(python, "gem-llm", "gem", env_id)
    assert report.ok, report.errors


def test_a_task_set_of_verifiers_is_judged_by_its_own_rewards(
    python: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = python("verifiers")
    monkeypatch.chdir(CODE)
    env = EnvConfig(env_type="verifiers", env_config={"env_id": "sums_tasks", "largest": 3}, python=where)

    async def played() -> None:
        host = environment_host("sums", env)
        handle = await host.open("sums", env.env_type, env.env_config)
        for seed in range(4):
            asked, _ = await handle.reset(seed)
            a, b = asked.removeprefix("Add.\n\n").removesuffix(" = ?").split(" + ")
            for answer, reward in ((str(int(a) + int(b)), 1.0), ("none", 0.0)):
                await handle.reset(seed)
                _, paid, done, _, info = await handle.step(answer)
                assert (paid, done, info["letters"]) == (reward, True, len(answer))
        await host.close()

    asyncio.run(played())


def test_a_server_of_openenv_is_played_by_its_address(python: Callable[[str], str]) -> None:
    where, port = python("openenv-core"), free_port()
    server = subprocess.Popen([where, str(CODE / "counting_server.py"), str(port)], stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        while "running on" not in (line := server.stderr.readline()):
            assert line, "the server has ended"
        asyncio.run(counted(where, f"http://127.0.0.1:{port}"))
    finally:
        server.kill()
        server.wait()


async def counted(python: str, base_url: str) -> None:
    config = {"base_url": base_url, "observation_field": "text", "instructions": "Count."}
    env = EnvConfig(env_type="openenv", env_config=config, python=python)
    host = environment_host("count", env)
    handles = [await host.open("count", env.env_type, env.env_config) for _ in range(2)]
    for seed, handle in zip((4, 7), handles, strict=True):
        assert (await handle.reset(seed))[0] == f"go on from {seed}", "sessions of their own"
    assert [(await handles[0].step(str(number)))[1:3] for number in (5, 6, 7)] == [(1.0, False), (1.0, False), (1.0, True)]
    assert (await handles[1].step("9"))[1:3] == (0.0, True)
    await host.close()


def test_a_process_that_dies_in_a_real_package_costs_its_episode(python: Callable[[str], str]) -> None:
    env = EnvConfig(env_type="textarena", env_config={"env_id": "GuessTheNumber-v0"}, python=python("textarena"))

    async def played() -> None:
        host = environment_host("guess", env)
        handle = await host.open("guess", env.env_type, env.env_config)
        first = await handle.reset(7)
        os.kill(handle.pid or 0, signal.SIGKILL)
        with pytest.raises(EnvFailure, match="signal 9"):
            await handle.step("[5]")
        assert await handle.reset(7) == first, "another process, the same task"
        await host.close()

    asyncio.run(played())
