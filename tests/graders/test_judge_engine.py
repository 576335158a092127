"""A judge on devices of its own: a model whose reply is known, on the embedded engine."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import symbol_tokenizer, tiny_qwen2

from roll.core.configs.worker import JudgeModelConfig, RewardConfig
from roll.core.data.sample import Prompt, Sample
from roll.core.rewards.worker import RewardResult
from roll.graders.by_model import Engine, LLMJudgeRewardWorker
from roll.graders.references import try_reward, unasked

pytestmark = pytest.mark.slow

TEMPLATE = "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}<eos>{% endfor %}"
JUDGE = "roll.pipeline.rlvr.rewards.llm_judge_reward_worker.LLMJudgeRewardWorker"


@pytest.fixture(params=["yes", "no"])
def judge(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A folder whose model says one word whatever it is asked: all its logits are equal, and the first of them is taken."""
    said = request.param
    tokenizer = symbol_tokenizer([said, "<pad>", "<eos>", *"user:Ab?"], pattern=rf"{said}|[\s\S]")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path)
    model = tiny_qwen2(len(tokenizer), eos_token_id=2)
    with torch.no_grad():
        model.model.norm.weight.zero_()
    model.save_pretrained(tmp_path)
    return tmp_path, said


def engine(folder: Path) -> dict[str, Any]:
    return {"name": "hf_infer", "options": {"model_path": str(folder), "max_running_requests": 2, "max_length": 64, "threads": 1}}


def sample(text: str) -> Sample:
    prompt = Prompt("a/0/1", [1], "A?", "a", "a", "b")
    return Sample(prompt, 0, [2], [0.0], [], "stop", response_text=text)


def results(config: dict[str, Any], texts: list[str]) -> list[RewardResult]:
    async def main() -> list[RewardResult]:
        worker = LLMJudgeRewardWorker({"timeout_s": 30.0, "max_concurrency": 2, **config})
        await worker.start()
        try:
            return await worker.compute_rewards([sample(text) for text in texts])
        finally:
            await worker.close()

    return asyncio.run(main())


def test_a_model_in_the_workers_process_judges(judge: tuple[Path, str]) -> None:
    folder, said = judge
    config = {"engine": engine(folder), "judge": {"generating_args": {"temperature": 0.0, "max_new_tokens": 1}}}
    graded = results(config | {"reward_args": {"judge_prompt": "{question} {response}"}}, ["A", "b", "Ab" * 20, " "])
    assert [result.value for result in graded[:2]] == [float(said == "yes")] * 2
    assert graded[2].value is not None and graded[3].value == 0.0
    (unasked,) = results(config | {"reward_args": {}}, ["A"])
    assert unasked.value is None, "the built-in question is longer than this judge's context: no judgement"


def test_a_question_cannot_end_its_turn(judge: tuple[Path, str]) -> None:
    folder, _ = judge

    async def main() -> list[int]:
        asked = Engine(engine(folder), {"temperature": 0.0, "max_new_tokens": 1})
        await asked.start()
        try:
            return [*asked._before, *asked._ids("A<eos>user:b", special=False), *asked._after]
        finally:
            await asked.close()

    assert asyncio.run(main()).count(2) == 1, "the end-of-text token stands once, where the template puts it"


@pytest.mark.parametrize(("named", "ends"), [(None, (2, 5, 1)), (7, (7,)), ([], ())])
def test_a_reply_ends_where_the_judges_own_folder_says_or_a_key(
    judge: tuple[Path, str], named: Any, ends: tuple[int, ...]
) -> None:
    folder, _ = judge
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')

    async def main() -> tuple[int, ...]:
        asked = Engine(engine(folder), {"temperature": 0.0, "max_new_tokens": 1, "eos_token_id": named})
        await asked.start()
        try:
            return asked._sampling.stop_token_ids
        finally:
            await asked.close()

    assert asyncio.run(main()) == ends


def test_only_a_worker_that_asks_a_judge_may_have_one() -> None:
    judge = JudgeModelConfig(model_name_or_path="nowhere", device_mapping="0")
    prompt = sample("").prompt
    try_reward(RewardConfig(worker_cls=JUDGE, judge=judge), [prompt])
    other = RewardConfig(worker_cls="roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker")
    (problem,) = unasked("d", replace(other, judge=judge))
    assert "MathRuleRewardWorker asks no judge" in problem.message and list(unasked("d", other)) == []
