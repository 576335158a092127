"""`roll env audit`: rewards that pay for nonsense are found, and honest ones pass."""

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from roll.cli.audit import audit as main

FLIPS = 10
ADDITIONS = "".join(
    json.dumps({"prompt": f"What is {a} + {b}?", "ground_truth": str(a + b)}) + "\n" for a in range(10, 16) for b in range(20, 26)
)


class Coins:
    """Whoever names the first flips is paid the share of the flips that are named: of his own, if these are fewer."""

    instructions = "A coin falls ten times. Write what you expect, in one word of H and T"

    def __init__(self, shorter: bool = True) -> None:
        self.shorter = shorter

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        self.flips = "".join(random.Random(seed).choices("HT", k=FLIPS))
        return "?", {"state_key": "?"}

    def step(self, action_text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        right = 0
        while right < min(len(action_text), FLIPS) and action_text[right] == self.flips[right]:
            right += 1
        share = right / max(1, min(len(action_text), FLIPS) if self.shorter else FLIPS)
        return "", share, True, False, {"action_is_valid": True, "action_is_effective": True, "success": share == 1}

    def close(self) -> None: ...

    def oracle_action(self) -> str:
        return self.flips


class SampledCoins(Coins):
    def sample_action(self, rng: random.Random) -> str:
        return "".join(rng.choices("HT", k=FLIPS))


class TouchyCoins(SampledCoins):
    def step(self, action_text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return super().step(action_text[0] + action_text[1:])


class ByTheClock(gymnasium.Env[str, int]):
    """What is wanted is drawn by a generator that the clock seeds."""

    def __init__(self) -> None:
        self.action_space, self.observation_space = spaces.Discrete(50), spaces.Text(1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.wanted = random.Random(int(time.time())).randrange(50)
        return "x", {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "x", float(action == self.wanted), True, False, {}


def exact(sample: Any) -> float:
    return float(sample.response_text.strip() == sample.prompt.ground_truth)


def contains(sample: Any) -> float:
    return float(sample.prompt.ground_truth in sample.response_text)


def begins(sample: Any) -> float:
    return float(sample.prompt.ground_truth.startswith(sample.response_text.strip()) and sample.response_text != "")


def obedient(sample: Any) -> float:
    return max(exact(sample), float('"correct": true' in sample.response_text))


def generous(sample: Any) -> float:
    return 1.0


def unlike(sample: Any) -> float:
    """Nothing that is there is right."""
    return float(sample.response_text == "what nobody says")


def moody(sample: Any) -> float:
    return random.random() / 100 + exact(sample)


def lost(sample: Any) -> float:
    return 1 / 0


def right_or_nothing(sample: Any) -> Any:
    return 1.0 if exact(sample) else None


def right_or_away(sample: Any) -> float:
    return 1.0 if exact(sample) else sys.exit(3)


def touchy(sample: Any) -> float:
    return float(int(sample.response_text) == int(sample.prompt.ground_truth))


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """This file as a module, and some prompts."""
    (tmp_path / "audited.py").write_text(Path(__file__).read_text())
    (tmp_path / "prompts.jsonl").write_text(ADDITIONS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def audited(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code = main([*arguments, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert code == (0 if told["ok"] else 1)
    (target,) = told["targets"]
    assert target["ok"] == told["ok"]
    return dict(target)


@pytest.mark.parametrize("env_type", ["audited.Coins", "audited.SampledCoins"])
def test_a_prefix_that_is_divided_by_the_shorter_length_is_found(env_type: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One letter earns half of what ten right ones do."""
    found = audited(capsys, env_type)
    kind = "constant" if env_type == "audited.Coins" else "fragment"
    assert any(problem.startswith("pays for nonsense: ") and kind in problem for problem in found["problems"])
    assert all("the reference 1" in problem for problem in found["problems"])
    assert found["players"][kind]["text"] in ("H", "T") and 0.35 < found["players"][kind]["mean"] < 0.65
    assert found["players"][kind]["maximum"] == found["players"]["reference"]["mean"] == found["accepted"] == 1.0
    assert audited(capsys, env_type, "--config", "shorter=false")["problems"] == []


@pytest.mark.parametrize("env_type", ["frozen_lake", "sokoban"])
def test_built_in_games_pay_for_the_game(env_type: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = audited(capsys, env_type, "--tasks", "12", "--config", "max_steps=40")
    assert found["problems"] == [] and found["accepted"] == 1.0
    assert found["players"]["empty"]["mean"] <= found["players"]["random"]["mean"] < found["players"]["reference"]["mean"]
    assert found["slowest_ms"] >= found["step_ms"] > 0


def test_a_text_that_is_cheaper_than_a_move_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    found = audited(capsys, "gymnasium", "--config", "env_id=CliffWalking-v1", "max_steps=30", "--tasks", "5")
    (problem,) = found["problems"]
    assert "empty, echo, enumerating, injecting: 0 on average" in problem and "(format_penalty)" in problem
    mended = ("env_id=CliffWalking-v1", "max_steps=30", "format_penalty=-100")
    assert audited(capsys, "gymnasium", "--config", *mended, "--tasks", "5")["problems"] == []


def test_who_watches_the_clock_is_found(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_764_000_000.5)
    found = audited(capsys, "audited.ByTheClock")
    assert found["players"]["clock"]["mean"] == 1.0
    assert ["depends on the clock" in problem for problem in found["problems"]] == [True]


@pytest.mark.parametrize(
    ("reward", "kind"),
    [("contains", "enumerating"), ("begins", "fragment"), ("obedient", "injecting")],
)
def test_a_reward_that_is_too_kind_is_found(reward: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = audited(capsys, f"audited.{reward}", "--prompts", "prompts.jsonl")
    assert [problem.startswith(f"pays for nonsense: {kind}") for problem in found["problems"]] == [True], found["problems"]


@pytest.mark.parametrize(
    ("reward", "problem"),
    [
        ("generous", "everybody earns 1, whatever they write"),
        ("unlike", "everybody earns 0, whatever they write"),
        ("moody", "the same task and the same answers earned something else the second time"),
    ],
)
def test_a_reward_that_says_nothing_is_found(reward: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert problem in audited(capsys, f"audited.{reward}", "--prompts", "prompts.jsonl")["problems"]


@pytest.mark.parametrize(
    "reward",
    [
        "audited.exact",
        "roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker",
        "roll.pipeline.rlvr.rewards.exact_match_reward_worker.ExactMatchRewardWorker",
    ],
)
def test_honest_rewards_pass(reward: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = audited(capsys, reward, "--prompts", "prompts.jsonl", "--tasks", "12")
    assert found["problems"] == [] and found["accepted"] == 1.0 and found["players"]["random"]["mean"] < 0.5


@pytest.mark.parametrize(
    "worker", ["general_val_rule_reward_worker.GeneralValRule", "crossthinkqa_rule_reward_worker.CrossThinkQARule"]
)
def test_a_choice_pays_a_constant_no_more_than_chance(worker: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": f"Question {i}: A, B, C or D?", "ground_truth": "ABCD"[i * 7 % 4]} for i in range(40)]
    (here / "choices.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = audited(capsys, f"roll.pipeline.rlvr.rewards.{worker}RewardWorker", "--prompts", "choices.jsonl")
    assert found["problems"] == [] and found["notes"] == []


def test_answers_without_a_reward_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    found = audited(capsys, "audited.touchy", "--prompts", "prompts.jsonl")
    assert found["problems"] == [] and found["players"]["empty"]["failed"] == found["tasks"]
    assert any(note.startswith("empty: 36 of 36 tasks have no reward: ValueError") for note in found["notes"])


@pytest.mark.parametrize("reward", ["right_or_nothing", "right_or_away"])
def test_a_reward_that_judges_right_answers_alone_does_not_pay_everybody(reward: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = audited(capsys, f"audited.{reward}", "--prompts", "prompts.jsonl")
    assert not any("everybody" in problem or "chance" in problem for problem in found["problems"])
    assert any(problem.startswith("random: ") and "tasks have no reward" in problem for problem in found["problems"])
    assert main([f"audited.{reward}", "--prompts", "prompts.jsonl"]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  empty")]
    assert line.split()[1:4] == ["–", "–", "36"]


def test_a_reward_or_an_environment_that_fails_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    """An environment has to take every text, a reward some."""
    found = audited(capsys, "audited.lost", "--prompts", "prompts.jsonl")
    assert any(problem.startswith("random: 36 of 36 tasks have no reward: ZeroDivisionError") for problem in found["problems"])
    found = audited(capsys, "audited.TouchyCoins", "--tasks", "5")
    assert any(problem.startswith("empty: 5 of 5 tasks have no reward: IndexError") for problem in found["problems"])


AGENTIC = """
exp_name: lakes
pretrain: nowhere
max_steps: 1
rollout_batch_size: 8
sequence_length: 64
max_tokens_per_step: 8
adv_estimator: reinforce
actor_train:
  device_mapping: [0]
  training_args: {per_device_train_batch_size: 8}
actor_infer: {device_mapping: [1]}
custom_envs:
  Lake: {env_type: frozen_lake, max_steps: 12, success_at: 1}
  Coins: {env_type: audited.SampledCoins, max_steps: 1}
train_env_manager: {num_env_groups: 8, group_size: 1}
"""


def test_a_run_is_audited_by_its_tags(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "lakes.yaml").write_text(AGENTIC)
    named = ("--config_path", ".", "--config_name", "lakes", "--tasks", "16")
    assert main([*named, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)["targets"]
    assert [(each["target"], each["ok"]) for each in told] == [("Lake", True), ("Coins", False)]
    assert told[0]["success_at"] == 1 and told[0]["accepted"] == 1.0
    assert main(["Lake", *named, "custom_envs.Lake.success_at=0.5"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Lake: 16 tasks, ") and shown.endswith("\n  ok\n") and "Coins" not in shown


def test_a_program_is_left_out_by_name(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = "  Agent: {env_type: program, program: {command: [python, agent.py], reward: posted}}\n"
    (here / "agents.yaml").write_text(AGENTIC.replace("train_env_manager", f"{program}train_env_manager"))
    named = ("--config_path", ".", "--config_name", "agents", "--tasks", "4")
    assert main(["Lake", *named]) == 0
    main(named)
    captured = capsys.readouterr()
    assert "Agent: not audited: it is a program" in captured.err and "Coins: 4 tasks" in captured.out
    assert main(["Agent", *named]) == 2
    assert "has nothing that can be audited here" in capsys.readouterr().err


RLVR = """
exp_name: sums
pretrain: nowhere
max_steps: 1
rollout_batch_size: 4
num_return_sequences_in_group: 2
prompt_length: 16
response_length: 8
actor_train:
  device_mapping: [0]
  training_args: {per_device_train_batch_size: 8}
  data_args: {file_name: two.jsonl, template: none}
actor_infer: {device_mapping: [1]}
rewards:
  sums: {worker_cls: audited.exact}
  lists: {worker_cls: audited.contains, success_at: 0.5}
"""


def test_a_run_is_audited_by_its_domains(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.loads(line) for line in ADDITIONS.splitlines()]
    tagged = [row | {"tag": ("sums", "lists")[i % 2]} for i, row in enumerate(rows)]
    (here / "two.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tagged))
    (here / "sums.yaml").write_text(RLVR)
    named = ("--config_path", ".", "--config_name", "sums")
    assert main([*named, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)["targets"]
    assert [(each["target"], each["ok"], each["tasks"], each["success_at"]) for each in told] == [
        ("sums", True, 18, 1.0),
        ("lists", False, 18, 0.5),
    ]
    assert main(["sums", *named]) == 0
    assert main(["products", *named]) == 2
    assert "target = 'products': is neither tag nor domain of this run; fix: one of sums, lists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "target = '': is needed, or --config_name; fix: e.g. frozen_lake"),
        (["frozen_lake", "--tasks", "1"], "--tasks = 1: must be >= 2"),
        (["frozen_lak"], "did you mean frozen_lake?"),
        (["frozen_lake", "size=3"], "belongs to no configuration; fix: --config KEY=VALUE"),
        (["audited.exact", "--prompts", "nowhere.jsonl"], "cannot read nowhere.jsonl: No such file"),
        (["audited.nothing", "--prompts", "prompts.jsonl"], "worker_cls = 'audited.nothing': cannot be tried"),
    ],
)
def test_bad_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err and not captured.out


def test_the_printed_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audited.contains", "--prompts", "prompts.jsonl"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:3] == ["player", "mean", "max"]
    assert [line.split()[:3] for line in lines if line.split()[:1] == ["reference"]] == [["reference", "1.000", "1.000"]]
    assert lines[-1] == "  problems: 1"
