"""Rewards of verl's form: a function that stays as it is, and the scorers that a row's data_source names."""

import asyncio
from dataclasses import replace

import pytest

from roll.compat.code.score_child import ScoreChild
from roll.compat.code.score_worker import ScoreRewardWorker
from roll.compat.verl.scorers import SourceRewardWorker, marked
from roll.core.data.sample import Prompt, Sample
from roll.core.rewards.worker import worker_class

THEIRS = """
import numpy as np

def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    if extra_info["kind"] == "bad":
        raise KeyError("kind")
    return {"score": np.float32(solution_str == ground_truth) + bonus, "acc": solution_str == ground_truth, "said": data_source}

async def awaited(**asked):
    return True

def nothing(**asked):
    return None

def unnamed(**asked):
    return {"acc": 1.0}
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "scores.py").write_text(THEIRS)
    return {"timeout_s": 60.0, "max_concurrency": 1, "worker_cls": "roll.compat.code.score_worker.ScoreRewardWorker",
            "reward_args": {"path": str(tmp_path / "scores.py")}}  # fmt: skip


def sample(text, truth="4", **row):
    row = {"data_source": "sums", "reward_model": {"style": "rule", "ground_truth": truth}, "extra_info": {"kind": "good"}} | row
    return Sample(Prompt("score/0/7", [1], "2+2=", "score", "score", truth, row), 0, [], [], [], "stop", response_text=text)


def judged(config, *samples):
    async def main():
        worker = worker_class(config["worker_cls"])(config)
        try:
            await worker.start()
            return [await worker.result(each) for each in samples]
        finally:
            await worker.close()

    return asyncio.run(main())


@pytest.mark.slow
def test_a_function_grades_as_it_does_in_verl(config):
    config["reward_args"]["reward_kwargs"] = {"bonus": 0.5}
    right, wrong, broken = judged(config, sample("4"), sample("5"), sample("4", extra_info={"kind": "bad"}))
    assert (right.value, right.parts) == (1.5, {"acc": 1.0})
    assert (wrong.value, wrong.parts) == (0.5, {"acc": 0.0})
    assert "kind" in broken.error


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("nothing", TypeError, "the score must be a number, not NoneType"),
        ("unnamed", KeyError, "without score; it has acc"),
        ("missing", AttributeError, "scores.py has no missing; it has compute_score, awaited, nothing, unnamed"),
    ],
)
def test_what_is_no_score_is_an_error_and_not_a_reward(config, name, error, says):
    config["reward_args"]["name"] = name
    with pytest.raises(error, match=says):
        ScoreChild(config).grade(ScoreRewardWorker(config).question(sample("4")))


def test_a_coroutine_is_awaited(config):
    config["reward_args"]["name"] = "awaited"
    assert ScoreChild(config).grade(ScoreRewardWorker(config).question(sample("4"))) == {"reward": 1.0, "parts": {}}


def test_ground_truth_is_the_rows_own_value(config):
    """The row's file may have a number, which a prompt keeps as text."""
    asked = ScoreRewardWorker(config).question(sample("4", reward_model={"ground_truth": 4}))
    assert asked["ground_truth"] == 4 and asked["data_source"] == "sums"


@pytest.mark.parametrize(
    ("response", "number"),
    [
        ("so #### 1,234", "1234"),
        ("#### 3 no, #### 5", "5"),
        ("#### -2.5", "-2.5"),
        ("the answer is 5", None),
        ("#### 5" + "x" * 300, None),
        ("####5", None),
    ],
)
def test_the_number_behind_the_mark(response, number):
    assert marked(response) == number


@pytest.mark.slow
def test_rows_of_two_sources_are_judged_by_their_own_rules():
    config = {
        "timeout_s": 20.0,
        "max_concurrency": 1,
        "worker_cls": "roll.compat.verl.scorers.SourceRewardWorker",
        "reward_args": {},
    }

    def of(source, text, truth):
        made = sample(text, truth)
        return replace(made, prompt=replace(made.prompt, tag=source))

    results = judged(
        config,
        of("openai/gsm8k", "#### 1,000", "1000"),
        of("openai/gsm8k", "\\boxed{1000}", "1000"),
        of("lighteval/MATH", "so \\boxed{\\frac{1}{2}}", "0.5"),
        of("math_dapo", "Answer: 34", "34"),
        of("math_dapo", "Answer: 35", "34"),
    )
    assert [result.value for result in results] == [1.0, 0.0, 1.0, 1.0, 0.0], results
    worker = SourceRewardWorker(config)
    assert marked(worker.solution("7")) == "7" and "\\boxed{7}" in worker.solution("7")
