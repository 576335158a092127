"""An episode as text."""

from roll.data.sample import Turn
from roll.envs.render import render, summary


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
