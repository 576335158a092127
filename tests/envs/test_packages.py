"""`roll env add`, and environments that are played in the interpreter that it makes. Instead of the real package a wheel of the
same name is installed, made here, without any index: what is tested is ours. The real ones: tests/envs_real (make test-envs)."""

import asyncio
import json
import os
import signal
import zipfile
from pathlib import Path
from typing import Any

import pytest

from roll.cli.audit import audit
from roll.cli.env import main
from roll.core.configs.agentic import EnvConfig
from roll.core.configs.problems import ConfigError
from roll.core.configs.program import POSTED, ProgramConfig
from roll.core.errors import EnvFailure
from roll.envs import packages
from roll.envs.elsewhere import answered, asked, rules
from roll.envs.environment_worker import environment_host
from roll.envs.packages import KNOWN, interpreter, shorthand
from roll.plan.rules.program_rules import program_problems
from roll.platform import interpreters

pytestmark = pytest.mark.slow
FAMILIES = '''
import os, random, sys, time, types

FLIPS = 10
KEPT = []

class Coins:
    """Pays the share of a prefix, divided by the shorter length, as a real family does."""
    def __init__(self, seed, size, shorter=True):
        self.seed, self.size, self.shorter = seed, size, shorter

    def __getitem__(self, index):
        if index >= self.size:
            raise IndexError
        answer = "".join(random.Random(self.seed + index).choices("HT", k=FLIPS))
        return {"question": f"{FLIPS} coins with seed {self.seed + index}", "answer": answer}

    def score_answer(self, answer, entry):
        if answer == "die":
            os._exit(3)
        if answer == "hang":
            time.sleep(1000)
        if answer == "leak":
            while True:
                KEPT.append(bytearray(1 << 20))
        if answer == "flood":
            print("words " * (1 << 18))
            raise ValueError("much " * (1 << 24))
        if answer == "raise":
            raise ValueError("no such coin")
        if answer == "where":
            alone = not {"torch", "ray", "transformers", "numpy"} & set(sys.modules)
            return sys.prefix != sys.base_prefix and alone and not KEPT
        right = 0
        while right < min(len(answer), FLIPS) and answer[right] == entry["answer"][right]:
            right += 1
        return right / max(1, min(len(answer), FLIPS) if self.shorter else FLIPS)

DATASETS = {"coins": Coins}
factory = types.SimpleNamespace(DATASETS=DATASETS)

def create_dataset(name, **config):
    return DATASETS[name](**config)
'''


def wheel(folder: Path, name: str, version: str, module: str, text: str) -> None:
    about = f"{name.replace('-', '_')}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{module}.py", text)
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `roll env add reasoning-gym` was given, with wheels alone to find it in."""
    folder = tmp_path_factory.mktemp("place")
    wheels = folder / "wheels"
    wheels.mkdir()
    wheel(wheels, "reasoning-gym", KNOWN["reasoning-gym"].version, "reasoning_gym", FAMILIES)
    wheel(wheels, "reasoning-gym", "99.0", "reasoning_gym", "raise SystemExit('not the version that was tested')")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("UV_FIND_LINKS", str(wheels))
        patch.setenv("UV_NO_INDEX", "1")
        assert main(["add", "reasoning-gym"]) == 0
    return folder


@pytest.fixture(autouse=True)
def there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In that folder, whatever stands beside the checkout."""
    monkeypatch.chdir(place)
    for module in (interpreters, packages):
        monkeypatch.setattr(module, "__file__", str(place / "a" / "b" / "c.py"))


COINS = {"env_type": "reasoning_gym", "env_config": {"env_id": "coins"}}


async def played(env: EnvConfig, *answers: str) -> list[Any]:
    host = environment_host("coins", env)
    handle = await host.open("coins", env.env_type, env.env_config)
    rewards: list[Any] = []
    try:
        for seed, answer in enumerate(answers):
            try:
                await handle.reset(seed)
                rewards.append((await handle.step(f"<answer>{answer}</answer>"))[1])
            except EnvFailure as failure:
                assert len(str(failure)) < 20_000, "no failure floods a journal"
                rewards.append(failure.kind)
        assert sum(host.failures.values()) == sum(isinstance(each, str) for each in rewards)
    finally:
        await host.close()
    return rewards


def test_an_environment_is_played_where_its_package_is() -> None:
    """In an interpreter that has no more than it: our side of the child needs none of our own packages."""
    assert asyncio.run(played(EnvConfig(**COINS), "where", "no such word")) == [1.0, 0.0]


FAULTS = {"die": "died", "hang": "timeout", "raise": "exception", "flood": "exception", "leak": "memory"}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_goes_wrong_there_costs_its_episode(fault: str) -> None:
    """What a process leaks is given back with it, so the next episode is played in another."""
    env = EnvConfig(**COINS, python="reasoning-gym", step_timeout_s=1.0 if fault == "hang" else 60.0, memory_mb=256)
    assert asyncio.run(played(env, "where", fault, "where")) == [1.0, FAULTS[fault], 1.0]


def test_an_interpreter_that_is_removed_below_a_run_costs_episodes_and_is_named(place: Path) -> None:
    """Who plays goes on as long as it lives; the next process cannot be started."""
    (place / ".venv-doomed").symlink_to(place / ".venv-reasoning-gym")

    async def play() -> None:
        host = environment_host("coins", EnvConfig(**COINS, python="doomed"))
        handles = [await host.open("coins", "reasoning_gym", {"env_id": "coins"}) for _ in range(2)]
        await handles[0].reset(1)
        (place / ".venv-doomed").unlink()
        with pytest.raises(EnvFailure, match=r"it cannot be started: .*/\.venv-doomed/bin/python"):
            await handles[1].reset(1)
        assert (await handles[0].step("<answer>HH</answer>"))[2], "the first is played to its end"
        assert host.failures == {"died": 1}
        await host.close()

    asyncio.run(play())


@pytest.mark.parametrize("spelling", ["Reasoning_Gym", "reasoning-gym>=0.1,<99"])
def test_a_known_package_is_known_however_it_is_written(
    spelling: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the latest version would stand in a folder where no run looks for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UV_FIND_LINKS", str(place / "wheels"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    assert main(["add", spelling]) == 0
    assert f".venv-reasoning-gym: reasoning-gym=={KNOWN['reasoning-gym'].version}" in capsys.readouterr().out
    assert interpreter("reasoning_gym", None) == str(tmp_path / ".venv-reasoning-gym" / "bin" / "python")


@pytest.mark.parametrize("said", ["", "{", "[]", '{"requirements": null, "installed": []}'])
def test_a_stamp_that_cannot_be_read_is_that_of_an_interrupted_installation(
    said: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UV_FIND_LINKS", str(place / "wheels"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    stamp = place / ".venv-reasoning-gym" / packages.STAMP
    stamp.write_text(said)
    assert main(["list"]) == 0
    assert "incomplete: roll env add reasoning-gym goes on" in capsys.readouterr().out
    assert main(["add", "reasoning-gym"]) == 0
    assert json.loads(stamp.read_text())["requirements"] == [f"reasoning-gym=={KNOWN['reasoning-gym'].version}"]


def test_its_processes_end_with_the_host() -> None:
    async def pids() -> list[int]:
        host = environment_host("coins", EnvConfig(**COINS))
        handles = [await host.open("coins", "reasoning_gym", {"env_id": "coins"}) for _ in range(2)]
        await asyncio.gather(*(handle.reset(1) for handle in handles))
        found = host.pids
        os.kill(found[0], signal.SIGKILL)
        with pytest.raises(EnvFailure, match="signal 9"):
            for handle in handles:
                await handle.step("x")
        await host.close()
        return found

    for pid in asyncio.run(pids()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_audit_is_held_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(["reasoning-gym:coins", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["targets"]
    assert any(problem.startswith("pays for nonsense: ") for problem in found["problems"])
    assert found["players"]["fragment"]["text"] in ("<answer>H</answer>", "<answer>T</answer>")
    assert found["players"]["reference"]["mean"] == found["accepted"] == 1.0
    assert audit(["reasoning-gym:coins", "--config", "shorter=false", "--json"]) == 0
    capsys.readouterr()


def test_the_whole_text_may_be_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(["reasoning-gym:coins", "--config", "shorter=false", "action_pattern=(.*)", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["targets"]
    assert found["players"]["reference"]["mean"] == found["accepted"] == 1.0
    assert set(found["players"]["constant"]["text"]) <= {"H", "T"}, "nothing stands around it"
    assert audit(["reasoning-gym:coins", "--config", "action_pattern=(", "--json"]) == 2
    assert "is not a regular expression" in capsys.readouterr().err


def test_so_is_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "reasoning-gym:coins", "--episodes", "3"]) == 0
    assert "reasoning_gym: ok" in capsys.readouterr().out


def test_tasks_are_prompts_with_their_own_scorer(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prompts", "reasoning-gym:coins", "--count", "6", "--config", "shorter=false"]) == 0
    (place / "coins.jsonl").write_text(capsys.readouterr().out)
    rows = [json.loads(line) for line in (place / "coins.jsonl").read_text().splitlines()]
    assert len({row["prompt"] for row in rows}) == 6 and all("10 coins" in row["prompt"] for row in rows)
    reward = [
        "roll.pipeline.rlvr.rewards.environment_reward_worker.EnvironmentRewardWorker",
        "--prompts",
        "coins.jsonl",
        "--config",
        "env=reasoning-gym:coins",
        "env_config={shorter: false}",
        "python=reasoning-gym",
    ]
    assert audit([*reward, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["targets"]
    assert found["accepted"] == 1.0 and found["players"]["random"]["mean"] < 0.5
    assert audit([*reward[:-1], "python=nowhere"]) == 2
    assert "roll env add nowhere" in capsys.readouterr().err


def test_a_row_chooses_among_what_the_package_lists_and_names_no_code(place: Path) -> None:
    python = interpreter("reasoning_gym", "reasoning-gym")
    truth = {"env_id": "coins", "seed": 1, "answer": None}
    assert asked(python, answered, ("reasoning_gym", {}, json.dumps(truth), "<answer>T</answer>")) in (0.0, 1.0)
    for env in ("reasoning_gym", "sokoban"):
        with pytest.raises(ConfigError, match="does not list"):
            asked(python, answered, (env, {}, json.dumps(truth | {"env_id": "os:Popen"}), "x"))


def test_an_environment_of_many_turns_is_no_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prompts", "sokoban", "--count", "1"]) == 2
    assert "goes on after an answer" in capsys.readouterr().err


def test_the_list_says_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert f"reasoning-gym=={KNOWN['reasoning-gym'].version}" in capsys.readouterr().out
    assert main(["list", "reasoning-gym"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["reasoning-gym:coins"]
    assert main(["list", "reasoning-gym", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reasoning-gym"]["ids"] == ["coins"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["check", "reasoning-gym:dice"], "roll env list reasoning-gym"),
        (["check", "reasoning-gym:coins", "--config", "longer=1"], "longer"),
        (["check", "frozen_lake", "--python", "reasoning-gim"], "did you mean reasoning-gym?"),
        (["check", "frozen_lake", "--python", "reasoning-gym"], "No module named"),
        (["list", "nowhere"], "roll env add nowhere"),
        (["check", "textarena:Hangman-v0", "--python", "reasoning-gym"], "fix: roll env add textarena"),
        (["check", "gem-llm:game:Wordle-v0", "--python", "reasoning-gym"], "fix: roll env add gem-llm"),
        (["check", "verifiers:tasks", "--python", "reasoning-gym"], "fix: roll env add verifiers"),
        (["check", "openenv", "--config", "base_url=http://x", "--python", "reasoning-gym"], "fix: roll env add openenv-core"),
    ],
)
def test_what_is_not_there_is_told(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


def test_what_uv_cannot_install_is_told_and_what_is_there_can_be_added_to(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UV_FIND_LINKS", str(place / "wheels"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    assert main(["add", "nowhere-to-be-found", "--name", "broken"]) == 2
    assert "uv cannot install it" in capsys.readouterr().err
    assert main(["list"]) == 0
    assert "incomplete" in capsys.readouterr().out
    capsys.readouterr()
    assert main(["add", "reasoning-gym", "--name", "again"]) == 0
    wheel(place / "wheels", "more-games", "1.0", "more_games", "")
    assert main(["add", "more-games", "--name", "again"]) == 0, "another into the same one"
    assert "reasoning-gym==" in capsys.readouterr().out.splitlines()[-1]
    assert main(["add", "more-games", "--name", "a/b"]) == 2
    assert interpreter("frozen_lake", "again") == str(place / ".venv-again" / "bin" / "python")


def test_a_folder_of_something_else_is_left_alone(place: Path) -> None:
    (place / ".venv-engine").mkdir(exist_ok=True)
    assert main(["add", "reasoning-gym", "--name", "engine"]) == 2
    assert not list((place / ".venv-engine").iterdir())


def test_a_key_that_is_wrong_there_is_named_as_the_run_has_it() -> None:
    with pytest.raises(ConfigError) as error:
        asked(interpreter("reasoning_gym", None), rules, "reasoning_gym", {"env_id": "dice"}, "custom_envs.x.env_config")
    assert [problem.key for problem in error.value.problems] == ["custom_envs.x.env_config.env_id"]
    assert "Answer the question" in asked(interpreter("reasoning_gym", None), rules, "reasoning_gym", {"env_id": "coins"})


def test_a_program_has_an_interpreter_of_its_own() -> None:
    program = ProgramConfig(command=["python", "agent.py"], reward=POSTED)
    (problem,) = program_problems("x", EnvConfig(env_type="program", program=program, python="reasoning-gym"))
    assert problem.key == "custom_envs.x.python"


def test_names() -> None:
    assert shorthand("reasoning-gym:coins", {"a": 1}) == ("reasoning_gym", {"env_id": "coins", "a": 1})
    assert shorthand("game:Sokoban-v0", {}) == ("game:Sokoban-v0", {})
    assert interpreter("frozen_lake", None) is None
    with pytest.raises(ConfigError, match=r"custom_envs.x.python = '/no/such/python'"):
        interpreter("frozen_lake", "/no/such/python", "custom_envs.x.python")
