"""The environment of this run, one of gymnasium. Change it: what `step` returns as reward is what the model learns to raise.
`roll env check environment.LastDigit` plays it."""

from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium import spaces


class LastDigit(gymnasium.Env[str, Any]):
    """Two digits are shown, and the last digit of their sum is wanted."""

    instructions = "You see a sum. Answer with its last digit."

    def __init__(self, turns: int = 3) -> None:
        self.turns = turns
        self.action_space = spaces.Discrete(10)
        self.observation_space = spaces.Text(4, charset="0123456789+=")

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)  # all that is random comes from self.np_random
        self.turn = 0
        return self.show(), {}

    def show(self) -> str:
        self.a, self.b = self.np_random.integers(10, size=2)
        return f"{self.a}+{self.b}="

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        right = action == (self.a + self.b) % 10
        self.turn += 1
        return self.show(), float(right), self.turn == self.turns, False, {}
