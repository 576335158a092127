"""What an episode of agent.py has earned: 1 for the right sum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples.agent_program.agent import order


def right_sum(trace: dict[str, Any], folder: Path) -> dict[str, Any]:
    """`trace`: what the agent and the policy said to each other. `folder`: where the agent worked."""
    wanted, prices = order(trace["seed"])
    file = folder / "answer.txt"
    said = file.read_text(encoding="utf-8").strip() if file.is_file() else ""
    right = said == str(sum(prices[item] for item in wanted))
    return {"reward": float(right), "success": right, "answered": bool(said)}
