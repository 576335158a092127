"""`roll env check`: what it measures, and what it finds."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from roll.cli.env import check as main
from roll.cli.options import keys_and_values
from roll.core.data.sample import Turn
from roll.envs.check import as_text, check_env, render, summary


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.mark.parametrize("env_type", ["frozen_lake", "sokoban"])
def test_built_in_environments_keep_their_promises(env_type: str) -> None:
    report = check_env(env_type, {}, episodes=10)
    assert report.ok, report.errors
    assert report.agents["oracle"].success_share == 1.0 and not report.notes
    assert report.agents["oracle"].mean_return > report.agents["random"].mean_return
    assert report.agents["random"].invalid_share == 0.0
    assert 0 < report.agents["random"].effective_share <= 1


def test_broken_promises_are_found() -> None:
    report = check_env("envs_under_test.Broken", {}, episodes=2)
    found = "\n".join(report.errors)
    assert "the same seed and actions gave other observations" in found
    assert "info has no action_is_effective, action_is_valid" in found
    notes = "\n".join(report.notes)
    for note in (
        "no sample_action",
        "instructions are empty",
        "no state_key",
        "all seeds begin with the same observation",
    ):
        assert note in notes


def test_an_environment_that_never_ends_is_a_problem_and_its_example_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs_under_test.Endless", "--episodes", "2"]) == 1
    shown = capsys.readouterr().out
    assert "problem: no episode ends: step has returned neither terminated nor truncated within 1000 turns" in shown
    assert len(shown.splitlines()) < 150 and "... 980 more turns" in shown and "not over: return 0 in 1000 turns" in shown


def test_a_game_that_never_ends_is_cut_short_and_that_is_said() -> None:
    report = check_env("envs_under_test.EndlessGame", {}, episodes=2)
    (said,) = [note for note in report.notes if "of its own" in note]
    assert said == "no episode ends of its own: each was cut short, after 200 turns at the latest (max_steps)"
    assert "turn 21" not in report.example and "180 more turns" in report.example


def test_a_reward_that_is_no_number_is_found() -> None:
    report = check_env("envs_under_test.BadReward", {}, episodes=2)
    assert any("the reward of a step must be finite, not nan" in error for error in report.errors)


def test_the_printed_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frozen_lake", "--config", "size=2", "p=1.0", "is_slippery=false", "--episodes", "3"]) == 0
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines()]
    assert ["oracle", "3", "1.000", "1.000", "1.000", "1.3", "100%", "0%", "100%"] in lines
    assert shown.endswith("frozen_lake: ok\n")
    assert "> <answer>Up</answer>" in shown and "terminated, success: return 1 in 1 turns" in shown
    assert main(["gymnasium", "--config", "env_id=CliffWalking-v1", "max_steps=30", "--episodes", "3"]) == 0
    shown = capsys.readouterr().out
    assert "note: all seeds begin with the same observation" in shown
    assert "note: a text without an action earns 0 a turn, a random action -" in shown
    assert main(["gymnasium", "--config", "env_id=CliffWalking-v1", "max_steps=9", "format_penalty=-99", "--episodes", "3"]) == 0
    assert "a text without an action earns" not in capsys.readouterr().out


def test_json_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--env", "frozen_lake", "--config", "size=3", "is_slippery=true", "--episodes", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and report["agents"]["random"]["episodes"] == 2 and "slippery" in report["instructions"]
    assert main(["--env", "envs_under_test.Broken", "--episodes", "1"]) == 1
    assert "problem: 1 episodes" not in capsys.readouterr().out.splitlines()[-1]
    for arguments, message in [
        (["--env", "frozen_lak"], "did you mean frozen_lake?"),
        (["--env", "frozen_lake", "--config", "size"], "must be key=value"),
        (["--env", "frozen_lake", "--config", "size=[1"], "is not valid YAML"),
        (["--env", "frozen_lake", "--episodes", "0"], "must be >= 1"),
    ]:
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert message in captured.err and not captured.out


def test_values_are_yaml() -> None:
    assert keys_and_values(["a=1", "b=true", "c=[6, 7]", "d=text", "e={L: Left}", "f=x=y"]) == {
        **{"a": 1, "b": True, "c": [6, 7], "d": "text"},
        **{"e": {"L": "Left"}, "f": "x=y"},
    }


def test_the_check_repeats() -> None:
    one, other = (replace(check_env("sokoban", {}, 3, seed=1), reset_ms=0.0, step_ms=0.0) for _ in range(2))
    assert as_text(one) == as_text(other)
    assert check_env("sokoban", {}, 3, seed=1).example != check_env("sokoban", {}, 3, seed=2).example


def turn(observation: str, action: str, reward: float, is_valid: bool = True, is_effective: bool = True) -> Turn:
    return Turn(observation, action, reward, "", is_valid, is_effective, tokens=1)


def test_turn_by_turn() -> None:
    turns = [
        turn("P_\n_G", "<answer>\nRight</answer>", 0.0),
        turn("_P\n_G", "what?", -0.1, is_valid=False, is_effective=False),
        turn("", "Up", 0.0, is_effective=False),
        turn("_P\n_G", "Down", 1.0),
    ]
    assert render(turns, "terminated", True, "__\n_√") == "\n".join(
        [
            *("turn 1", "  P_", "  _G", "  > <answer>\\nRight</answer>", "  reward 0", ""),
            *("turn 2", "  _P", "  _G", "  > what?", "  reward -0.1  (invalid action)", ""),
            *("turn 3", "  (nothing)", "  > Up", "  reward 0  (no effect)", ""),
            *("turn 4", "  _P", "  _G", "  > Down", "  reward 1", ""),
            *("end", "  __", "  _√", ""),
            "terminated, success: return 0.9 in 4 turns, 1 invalid actions",
        ]
    )


def test_endings() -> None:
    assert summary([], None, False) == "not over: return 0 in 0 turns"
    assert summary([turn("", "a", 1.0)], "max_steps", False) == "truncated by max_steps, no success: return 1 in 1 turns"
    assert summary([turn("", "a", 1.0)], "truncated", True).startswith("truncated by the environment, success: ")


def test_what_a_model_writes_does_not_steer_the_terminal() -> None:
    assert "\x1b" not in render([turn("", "\x1b[2J\r", 0.0)], None, False)
