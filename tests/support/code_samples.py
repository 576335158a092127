"""Responses that are programs, and what the code worker says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from judged import judged

from roll.core.data.sample import Prompt, Sample
from roll.core.rewards.worker import RewardResult
from roll.graders.code_rule import CodeSandboxRewardWorker

CONFIG: dict[str, Any] = {"timeout_s": 6.0, "max_concurrency": 2, "reward_args": {}}
DOUBLE = "print(int(input()) * 2)"
DOUBLED = [{"stdin": "3", "expected_stdout": "6\n"}]
FORBIDDEN = """
import roll.graders.sandbox.namespaces as namespaces
def isolate(): raise OSError("user namespaces are forbidden here")
namespaces.isolate = isolate
namespaces.closed_to_others = lambda isolated: ""
"""
"""What is loaded already runs, wherever Python lies."""


def sample(source: str, tests: Any, **row: Any) -> Sample:
    prompt = Prompt("code/0/1", [1], "?", "code", "code", "", {"test_cases": tests, **row})
    return Sample(prompt, 0, [2], [0.0], [], "stop", response_text=f"<think>hm</think>\n```python\n{source}\n```\n")


def results(samples: Sequence[Sample], **arguments: Any) -> list[RewardResult]:
    return judged(CodeSandboxRewardWorker({**CONFIG, "reward_args": arguments}), samples)
