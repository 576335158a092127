"""The reward worker that README.md and docs_roll/rewards.md show does what they say."""

import asyncio
import re
from pathlib import Path

import pytest

from roll.core.data.sample import Prompt, Sample

ROOT = Path(__file__).parents[2]


def documented_class(page):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    (code,) = [block for block in blocks if "class DigitsRewardWorker" in block]
    namespace = {}
    exec(compile(code, page, "exec", dont_inherit=True), namespace)
    return namespace["DigitsRewardWorker"]


@pytest.mark.parametrize("page", ["README.md", "docs_roll/rewards.md"])
@pytest.mark.parametrize(("response", "expected"), [("021", 1.0), (" 011\n", 2 / 3), ("0219", 0.9), ("", 0.0)])
def test_it_grades(page, response, expected):
    prompt = Prompt("a/0/1", [1], "41+79=", "arithmetic", "arithmetic", "021")
    sample = Sample(prompt, 0, [1], [0.0], [], "stop", response_text=response)

    async def grade():
        worker = documented_class(page)({"timeout_s": 5, "max_concurrency": 2, "reward_args": {"length_penalty": 0.1}})
        return await worker.compute_rewards([sample])

    (result,) = asyncio.run(grade())
    assert result.value == pytest.approx(expected, abs=1e-12)
