"""The reward of rows that name their scorer, by verl's `data_source`."""

from __future__ import annotations

import re

from roll.compat.verl.sources import GSM8K
from roll.core.data.sample import Sample
from roll.graders.answers import reference
from roll.graders.rules import MathRuleRewardWorker

_MARKED = re.compile(r"#### (-?[0-9.,]+)")
SEARCHED = 300
"""Characters, from the end."""


class SourceRewardWorker(MathRuleRewardWorker):
    """openai/gsm8k: 1 if the last number behind `####` is the reference, as it is written; its like in the other sources is
    MathRuleRewardWorker's: 1 for a right result."""

    async def grade(self, sample: Sample) -> float:
        if sample.prompt.tag in GSM8K:
            return float(marked(sample.response_text) == reference(sample.prompt.ground_truth).replace(",", ""))
        return await super().grade(sample)

    def solution(self, ground_truth: str) -> str:
        return f"{super().solution(ground_truth)}\n#### {reference(ground_truth)}"


def marked(response: str) -> str | None:
    """Returns the last number behind `####` in the response's end, without thousands' commas."""
    found = _MARKED.findall(response[-SEARCHED:])
    return str(found[-1]).replace(",", "") if found else None
