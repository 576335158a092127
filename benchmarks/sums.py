"""The load of `rlvr_vs_trl.py --model`: the task of `make demo-real`, the same for both sides, with a real model.

Only the standard library is needed to import this file: the two sides live in different environments.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "smollm2"
PROMPTS_PER_STEP, GROUP = 8, 8
LONGEST_RESPONSE = 8
LEARNING_RATE = 1e-5
WARM_UP = 3
"""Steps left out at the beginning, when samples a second are counted."""
OVER = 5
"""Steps whose answers make an accuracy."""
# Masters in float32, products in bf16, as on our side: in weights of bf16 alone a step of this size is rounded away.
TRL_OPTIONS: dict[str, Any] = {"bf16": True}


def rewards() -> list[Any]:
    """For TRL: the reward, and as a second one, which weighs nothing, whether the answer is right."""
    sys.path.append(str(EXAMPLE))
    judge = importlib.import_module("sums_reward").judge

    def reward(completions: list[Any], ground_truth: list[str], **_: Any) -> list[float]:
        return [judge(said[0]["content"], truth)[0] for said, truth in zip(completions, ground_truth, strict=True)]

    def right(completions: list[Any], ground_truth: list[str], **_: Any) -> list[float]:
        return [judge(said[0]["content"], truth)[1]["right"] for said, truth in zip(completions, ground_truth, strict=True)]

    return [reward, right]


def make(folder: Path, model: Path) -> None:
    """Writes `prompts.jsonl`, with conversations as TRL wants them, and links what make_model.py has made beside the model."""
    source = model.parent / "train.jsonl"
    (folder / "model").symlink_to(model.resolve())
    (folder / "train.jsonl").symlink_to(source.resolve())
    rows = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    with (folder / "prompts.jsonl").open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps({"prompt": json.loads(row["messages"]), "ground_truth": row["ground_truth"]}) + "\n")


def seconds_to(accuracy: float, right: Sequence[float], ends: Sequence[float]) -> float | None:
    """When the share of right answers, over `OVER` steps, first reached `accuracy`; None: never. `ends`: of the steps, in seconds
    since the first one began."""
    assert len(right) == len(ends) and all(a <= b for a, b in pairwise(ends))
    for i in range(OVER, len(right) + 1):
        if sum(right[i - OVER : i]) / OVER >= accuracy:
            return ends[i - 1]
    return None
