"""The conversation of program_cost.py as an environment, and the reward of the program that has the same one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from talking_agent import QUESTIONS, SPENT

spent_s: list[float] = []
"""Processor time of each program, as it has written it down."""


def _earned(said: str) -> float:
    return said.count("e") / max(1, len(said))


class Talk:
    """The environment: what the program does."""

    instructions = ""

    def reset(self, seed: int) -> tuple[list[dict[str, str]], dict[str, object]]:
        self.said: list[str] = []
        self.messages = [{"role": "user", "content": QUESTIONS[0]}]
        return self.messages, {}

    def step(self, text: str) -> tuple[list[dict[str, str]], float, bool, bool, dict[str, object]]:
        self.said.append(text)
        over = len(self.said) == len(QUESTIONS)
        next_ = [] if over else [{"role": "user", "content": QUESTIONS[len(self.said)]}]
        self.messages = [*self.messages, {"role": "assistant", "content": text}, *next_]
        return self.messages, _earned("".join(self.said)) if over else 0.0, over, False, {"action_is_valid": True}

    def close(self) -> None: ...


def reward(trace: dict[str, Any], folder: Path) -> float:
    spent_s.append(float((folder / SPENT).read_text(encoding="utf-8")))
    (conversation,) = trace["conversations"]
    return _earned("".join(each["content"] for each in conversation["messages"] if each["role"] == "assistant"))
