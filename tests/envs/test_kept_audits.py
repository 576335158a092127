"""`audit: required`: a run starts only where an audit that is kept has found nothing wrong with what the run is made of now."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from roll.cli.audit import audit
from roll.cli.check import main as check
from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.ppo import AUDITED, AUDITS
from roll.core.configs.problems import ConfigError
from roll.core.configs.rlvr import RLVRConfig
from roll.core.distributed.devices import Inventory
from roll.envs import kept_audits
from roll.plan.rules.loading import load_config
from roll.prepare.agentic_run import AgenticPipeline

FLIP = """
import random

class Flip:
    instructions = "A coin falls: H or T?"

    def reset(self, seed):
        self.side = random.Random(seed).choice("HT")
        return "?", {"state_key": "?"}

    def step(self, action_text):
        right = %s
        return "", float(right), True, False, {"action_is_valid": True, "action_is_effective": True, "success": right}

    def close(self): ...

    def oracle_action(self):
        return self.side

    def sample_action(self, rng):
        return rng.choice("HT")


def reward(sample):
    return float(sample.response_text == sample.prompt.ground_truth)
"""
HONEST, KIND = FLIP % "action_text == self.side", FLIP % "self.side in action_text"
AGENTIC: dict[str, Any] = {
    "exp_name": "coins", "pretrain": "nowhere", "max_steps": 1, "rollout_batch_size": 8, "sequence_length": 64,
    "max_tokens_per_step": 8, "adv_estimator": "reinforce",
    "actor_train": {"device_mapping": "[0]", "training_args": {"per_device_train_batch_size": 8}},
    "actor_infer": {"device_mapping": "[1]"},
    "custom_envs": {"Coin": {"env_type": "flips.Flip", "max_steps": 1}},
    "train_env_manager": {"num_env_groups": 8, "group_size": 1},
}  # fmt: skip
PROGRAM = {"env_type": "program", "program": {"command": ["python", "agent.py"], "reward": "posted"}}
RLVR: dict[str, Any] = {
    "exp_name": "sides", "pretrain": "nowhere", "max_steps": 1, "rollout_batch_size": 4, "num_return_sequences_in_group": 2,
    "prompt_length": 16, "response_length": 8,
    "actor_train": {
        "device_mapping": "[0]", "training_args": {"per_device_train_batch_size": 8},
        "data_args": {"file_name": "sides.jsonl", "template": "none"},
    },
    "actor_infer": {"device_mapping": "[1]"},
    "rewards": {"sides": {"worker_cls": "flips.reward"}},
}  # fmt: skip
HERE = ("--config_path", ".", "--config_name", "run")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    (tmp_path / "flips.py").write_text(HONEST)
    sides = [{"id": str(i), "prompt": f"coin {i}?", "ground_truth": "HT"[i % 2]} for i in range(40)]
    (tmp_path / "sides.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sides))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def each_is_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What code is made of is looked up once in a process, and modules are imported once."""
    monkeypatch.delitem(sys.modules, "flips", raising=False)
    monkeypatch.setattr(kept_audits, "_code", kept_audits._code.__wrapped__)


def write(here: Path, mapping: dict[str, Any], **more: Any) -> None:
    (here / "run.yaml").write_text(json.dumps(mapping | {"audit": "required"} | more))


def checked(capsys: pytest.CaptureFixture[str]) -> tuple[int, list[tuple[str, str]]]:
    capsys.readouterr()
    code = check([*HERE, "--json"])
    return code, [(each["key"], each["message"]) for each in json.loads(capsys.readouterr().out)["problems"]]


@pytest.mark.parametrize("mapping", [AGENTIC, RLVR], ids=["agentic", "rlvr"])
def test_a_run_is_refused_until_it_is_audited_and_again_when_its_code_changes(
    mapping: dict[str, Any], here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here, mapping)
    (name,) = mapping.get("custom_envs", mapping.get("rewards"))
    assert checked(capsys) == (1, [("audit", f"there is no audit of {name}")])
    assert audit(HERE) == 0
    (file,) = (here / AUDITS).iterdir()
    assert checked(capsys) == (0, []) == checked(capsys)
    write(here, mapping, exp_name="another", max_steps=3)
    assert checked(capsys) == (0, []), "what the audit is not of may change"
    (here / "helper.py").write_text("# what flips.py may import\n")
    assert checked(capsys) == (1, [("audit", f"{name} was audited before flips changed")])
    assert audit(HERE) == 0 and [*(here / AUDITS).iterdir()] == [file] and checked(capsys) == (0, [])
    monkeypatch.setattr(kept_audits, "version", lambda package: "99")
    assert checked(capsys)[1][0][1].startswith(f"{name} was audited before gymnasium")


def test_other_settings_are_another_audit(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, AGENTIC)
    assert audit(HERE) == 0
    write(here, AGENTIC, custom_envs={"Coin": {"env_type": "flips.Flip", "max_steps": 2}})
    assert checked(capsys) == (1, [("audit", "there is no audit of Coin")])
    write(here, AGENTIC, custom_envs={"Penny": AGENTIC["custom_envs"]["Coin"]})
    assert checked(capsys) == (0, []), "the same environment by another name"


def test_other_prompts_are_another_audit(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, RLVR)
    assert audit(HERE) == 0
    rows = (here / "sides.jsonl").read_text().splitlines()
    (here / "sides.jsonl").write_text("\n".join(sorted(rows, reverse=True)))
    assert checked(capsys) == (1, [("audit", "sides was audited before the prompts changed")])


def test_what_the_audit_finds_refuses_a_run_that_requires_one_and_is_told_otherwise(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "flips.py").write_text(KIND)
    write(here, AGENTIC)
    assert audit(HERE) == 1
    code, ((key, message),) = checked(capsys)
    assert (code, key) == (1, "custom_envs.Coin") and message.startswith("its audit: pays for nonsense: enumerating")
    write(here, AGENTIC, audit="optional")
    assert check(HERE) == 0
    assert "the audit of Coin found: pays for nonsense: enumerating" in " ".join(capsys.readouterr().out.split())
    (here / "flips.py").write_text(HONEST)
    monkeypatch.delitem(sys.modules, "flips")
    assert check(HERE) == 0
    assert "Coin was audited before flips changed" in " ".join(capsys.readouterr().out.split())


def test_a_run_has_its_audits_in_its_folder(here: Path) -> None:
    class Assembled:
        run_dir = here

        def __init__(self, config: AgenticConfig) -> None:
            self.config = config

    (here / "flips.py").write_text(KIND)
    write(here, AGENTIC, audit="optional")
    config = load_config(AgenticConfig, AGENTIC)
    pipeline = AgenticPipeline(config, local=True)
    pipeline._show_audits(Assembled(config))  # type: ignore[arg-type]
    assert not (here / AUDITED).exists(), "there is no audit"
    assert audit(HERE) == 1
    pipeline._show_audits(Assembled(config))  # type: ignore[arg-type]
    ((name, shown),) = json.loads((here / AUDITED).read_text()).items()
    assert (name, shown["tasks"], shown["changed"]) == ("Coin", 40, []) and shown["problems"][0].startswith("pays for nonsense")
    assert shown["earned"]["enumerating"] == 1.0 and shown["earned"]["empty"] == 0.0
    (here / "flips.py").write_text(HONEST)
    pipeline._show_audits(Assembled(config))  # type: ignore[arg-type]
    assert json.loads((here / AUDITED).read_text())["Coin"]["changed"] == ["flips"]


def test_what_cannot_be_audited_is_refused_by_name(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, AGENTIC, custom_envs={**AGENTIC["custom_envs"], "Agent": PROGRAM})
    assert audit(HERE) == 0
    code, ((key, message),) = checked(capsys)
    assert (code, key) == (1, "custom_envs.Agent") and message.startswith("cannot be audited: it is a program")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"report": {"tasks": "many"}, "made_of": {}}', "\xff"])
def test_a_file_that_is_no_audit_counts_as_none(text: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, AGENTIC)
    assert audit(HERE) == 0
    (file,) = (here / AUDITS).iterdir()
    file.write_text(text, encoding="latin-1")
    assert checked(capsys) == (1, [("audit", "there is no audit of Coin")])


def test_an_audit_that_cannot_be_kept_is_told_all_the_same(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, AGENTIC)
    (here / AUDITS).write_text("a file is in its place")
    assert audit(HERE) == 0
    captured = capsys.readouterr()
    assert "Coin: its audit is not kept: " in captured.err and captured.out.startswith("Coin: 40 tasks")


def test_the_run_itself_refuses_and_an_evaluation_does_not_ask(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any worker starts, whoever starts it."""

    class Nothing:
        checkpoint, stages, callbacks = None, (), ()

        def __init__(self, config: AgenticConfig) -> None:
            self.config = config

    config = load_config(AgenticConfig, AGENTIC | {"audit": "required"})
    pipeline = AgenticPipeline(config, local=True)
    monkeypatch.setattr(pipeline, "prepare", lambda inventory: Nothing(config))
    with pytest.raises(ConfigError, match="audit = 'required': there is no audit of Coin; fix: roll env audit --config_name"):
        pipeline._prepared(Inventory("cpu", nodes=1, per_node=2, cpus_per_node=2), None)  # type: ignore[arg-type]
    trainer = load_config(RLVRConfig, RLVR | {"audit": "required", "mode": "train"})
    assert list(kept_audits.refusals(trainer)) == [], "a trainer alone plays nothing"
