"""The reward of the task: a sum, and the number alone, as the question asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import roll  # benchmarks/trl_side.py judges with this file where roll is not installed


def reward(sample: roll.Sample) -> tuple[float, dict[str, float]]:
    return judge(sample.response_text, sample.prompt.ground_truth)


def judge(text: str, truth: str) -> tuple[float, dict[str, float]]:
    """1 for the right number and nothing else. Another number earns at most a half, the nearer the more: the model seldom begins
    with the right one, and without a way up there is little to learn from."""
    said = text.strip()
    alone = said.isascii() and said.isdigit() and len(said) < 10
    right = alone and int(said) == int(truth)
    near = max(0.0, 1 - abs(int(said) - int(truth)) / 10) if alone else 0.0
    return (1.0 if right else near / 2), {"right": float(right), "number_alone": float(alone)}
