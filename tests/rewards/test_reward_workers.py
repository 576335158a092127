"""What is right, what is wrong, and what is no judgement at all."""

import asyncio
import math
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import sympy
from judged import judged
from sympy.core.cache import CACHE

from roll.core.data.sample import Prompt, Sample
from roll.core.rewards.worker import Grade, RewardResult, RewardWorker
from roll.graders import math_grader
from roll.graders.answers import answer_text
from roll.graders.math_grader import grade
from roll.graders.pool import TimedPool
from roll.graders.rules import ExactMatchRewardWorker, MathRuleRewardWorker

CONFIG = {"timeout_s": 5.0, "max_concurrency": 2, "reward_args": {}}


def sample(response: str, ground_truth: str) -> Sample:
    prompt = Prompt("math/0/1", [1], "?", "math", "math", ground_truth)
    return Sample(prompt, 0, [2], [0.0], [], "stop", response_text=response)


@pytest.mark.parametrize(
    ("ground_truth", "response"),
    [
        ("12", "12"),
        ("12", "The answer is 12."),
        ("1234", "1,234"),
        ("-7", "so x equals $-7$"),
        ("3.5", "7/2"),
        (r"\frac{1}{2}", "0.5"),
        (r"$\frac{1}{2}$", r"$\frac{2}{4}$"),
        (r"\boxed{\frac{1}{2}}", r"\boxed{0.5}"),
        (r"x^2+1", r"hence \boxed{1+x^2}"),
        (r"2\sqrt{3}", r"$\sqrt{12}$"),
        (r"(1,2)", r"\boxed{(1, 2)}"),
        ("12", "first 13, but then 12"),
    ],
)
def test_equal_answers_in_any_notation(ground_truth: str, response: str) -> None:
    assert grade({"response": response, "ground_truth": ground_truth}) == 1.0


@pytest.mark.parametrize(
    ("ground_truth", "response"),
    [
        ("12", "13"),
        ("12", ""),
        ("12", "I do not know"),
        (r"\frac{1}{2}", "2"),
        ("12", "first 12, but then 13"),
        ("12", r"\boxed{"),
    ],
)
def test_wrong_and_missing_answers(ground_truth: str, response: str) -> None:
    assert grade({"response": response, "ground_truth": ground_truth}) == 0.0


def test_the_answer_is_what_follows_the_thinking() -> None:
    assert answer_text("<think>it is 5</think> it is 6") == " it is 6"
    assert answer_text("it is 6") == "it is 6", "a response without thinking is an answer too"


def test_the_answer_may_be_looked_for_in_the_conclusion_alone() -> None:
    worker = MathRuleRewardWorker(CONFIG | {"reward_args": {"answer_part": "conclusion"}})
    graded = [sample(text, "13") for text in ("it is 13", "1 + 12\n\nso 13", "so 13\n\n12", "<think>12</think>13")]
    assert [result.value for result in judged(worker, graded)] == [0.0, 1.0, 0.0, 1.0]
    with pytest.raises(ValueError, match=r"answer_part 'end' is none of response, conclusion"):
        MathRuleRewardWorker(CONFIG | {"reward_args": {"answer_part": "end"}})


SOLVED = [
    ("48/2 = <<48/2=24>>24 clips in May.\n48+24 = <<48+24=72>>72 in both.\n#### 72", "so 72 clips", "so 24 clips"),
    ("He made $1,000+$234.\n#### 1,234", r"\boxed{1234}", r"\boxed{234}"),
    ("#### 1,234", "She earns $1,234.00 a year.", "She earns $1,233 a year."),
    ("#### 1,234,567", r"$1234567$", "1,234"),
    ("He lost 5.\n#### -5", "#### -5", "#### 5"),
    ("#### 0.5", r"\boxed{\frac{1}{2}}", "5"),
    ("#### 5 #### 6", "6", "5"),
    ("72", "72", "#### 7"),
    # What the solution says on its way is no answer, and no excuse for what an answer says.
    ("4 * 10^2 - \\boxed{3} = 397\n#### 397", "397", "3"),
    ("It is wrong to say 7.\n#### 42", "42", r"\boxed{42\text{ is wrong}}"),
]


def test_a_worked_solution_ends_with_its_answer() -> None:
    """GSM8K's ground truth, as it is distributed. A reward is tried on the whole of it, so that must be no error."""
    graded = judged(MathRuleRewardWorker(CONFIG), [sample(text, case[0]) for case in SOLVED for text in (*case[1:], case[0])])
    for i, (truth, right, wrong) in enumerate(SOLVED):
        one, zero, tried = graded[3 * i : 3 * i + 3]
        assert (one.value, zero.value, tried.error) == (1.0, 0.0, None), (truth, right, wrong)


def test_math_rewards_through_the_pool() -> None:
    graded = [
        sample("<think>12</think>13", "13"),
        sample("the answer is 13", "13"),
        sample("<think>13</think>12", "13"),
        sample("13", ""),
    ]
    results = judged(MathRuleRewardWorker(CONFIG), graded)
    assert [result.value for result in results] == [1.0, 1.0, 0.0, None]
    assert "ground truth '' is not a mathematical expression" in (results[3].error or "")


@pytest.mark.slow
def test_an_answer_that_cannot_be_evaluated_in_time_is_wrong() -> None:
    """SymPy would work on this for hours. The group is kept."""
    explosive = r"\boxed{(x+y+z+w)^{4000}}"
    results = judged(MathRuleRewardWorker({**CONFIG, "timeout_s": 3.0}), [sample(explosive, "17"), sample("17", "17")])
    assert results == [RewardResult(value=0.0), RewardResult(value=1.0)]


JUDGES = """
import os, time

def silent(item):
    time.sleep(60)

def slow_for_one(item):
    if "7" not in item["response"]:
        time.sleep(60)
    return 1.0

def dying(item):
    os._exit(3)

def leaving(item):
    raise SystemExit("done here")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("judge", "expected"),
    [
        ("slow_for_one", RewardResult(value=0.0)),
        ("silent", RewardResult(error="timeout")),
        ("dying", RewardResult(error="GraderError: the grader process died (exit code 3)")),
        ("leaving", RewardResult(error="GraderError: SystemExit: done here")),
    ],
)
def test_whose_fault_a_missing_judgement_is(
    judge: str, expected: RewardResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer's, if the judge answers when it is asked the ground truth itself; else the judge's."""
    (tmp_path / "judges_under_test.py").write_text(JUDGES)
    monkeypatch.syspath_prepend(str(tmp_path))
    worker = MathRuleRewardWorker(CONFIG)
    worker._pool = TimedPool(1, 1.5, f"judges_under_test:{judge}")
    assert judged(worker, [sample("16", "17")]) == [expected]


def test_a_reward_that_exits_is_an_error_of_that_reward() -> None:
    class Leaving(RewardWorker):
        async def grade(self, sample: Sample) -> float:
            if sample.response_text == "go":
                sys.exit("done here")
            return 1.0

    results = judged(Leaving(CONFIG), [sample("go", ""), sample("stay", "")])
    assert results == [RewardResult(error="SystemExit: done here"), RewardResult(value=1.0)]


def test_exact_match() -> None:
    graded = [sample(" 46\n", "46"), sample("64", "46"), sample("", "46"), sample("46 46", "46")]
    assert [result.value for result in judged(ExactMatchRewardWorker(CONFIG), graded)] == [1.0, 0.0, 0.0, 0.0]


class Judge(RewardWorker):
    """Does what the response says."""

    running = 0
    most = 0

    async def grade(self, sample: Sample) -> float:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(60 if sample.response_text == "hang" else 0)
        finally:
            self.running -= 1
        if sample.response_text == "raise":
            raise ConnectionError("refused")
        return float(sample.response_text)


def test_failures_of_a_judge_are_errors_and_never_numbers() -> None:
    judge = Judge({"timeout_s": 0.2, "max_concurrency": 3})
    results = judged(judge, [sample(text, "") for text in ("0.25", "hang", "raise", "nan", "-1", "0", "0")])
    assert [result.value for result in results] == [0.25, None, None, None, -1.0, 0.0, 0.0]
    assert results[1].error == "timeout"
    assert results[2].error == "ConnectionError: refused"
    assert "a finite number" in (results[3].error or "")
    assert judge.most == 3


class Stuck(RewardWorker):
    """A plain method, which comes back for one ground truth only."""

    done = threading.Event()

    def grade(self, sample: Sample) -> float:  # type: ignore[override]
        if sample.prompt.ground_truth != "quick":
            self.done.wait()
        return 1.0


def test_a_plain_method_that_never_comes_back_costs_no_other_sample() -> None:
    worker = Stuck({**CONFIG, "timeout_s": 0.2, "max_concurrency": 8})
    try:
        found = judged(worker, [sample("", "slow")] * 8)
        assert {result.error for result in found} == {"timeout"}
        worker.timeout_s = 60.0  # a busy machine may start a thread late
        assert judged(worker, [sample("", "quick")] * 4) == [RewardResult(1.0)] * 4
        worker.timeout_s = 0.2
        assert {result.error for result in judged(worker, [sample("", "slow")] * 8)} == {"timeout"}
        (refused,) = judged(worker, [sample("", "quick")])
        assert (refused.error or "").startswith("TooManyStuck: 16 threads of Stuck.grade hang")
        assert "the last hangs in" in (refused.error or "") and "threading.py" in (refused.error or "")
    finally:
        Stuck.done.set()


@pytest.mark.parametrize("parts", [{"part": math.nan}, {"part": 10**400}, {"part": "1"}, {"judged": 1.0}])
def test_a_part_is_a_finite_number_and_none_passes_for_the_judgement(parts: Any) -> None:
    """`judged` decides whether a sample has succeeded."""

    class WithParts(RewardWorker):
        async def grade(self, sample: Sample) -> Grade:
            return 0.0, parts

    (found,) = judged(WithParts(CONFIG), [sample("", "")])
    assert found.value is None and re.search("part '(part', which must be|judged': the name)", found.error or "")


def test_an_answer_that_fills_the_memory_leaves_none_of_it_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def fills(*_: object) -> bool:
        for i in range(300):
            sympy.cos(sympy.Integer(i) + sympy.Symbol("x"))
        raise MemoryError

    monkeypatch.setattr(math_grader, "_is_right", fills)
    assert grade({"response": "1", "ground_truth": "1"}) == 0.0
    assert sum(cached.cache_info().currsize for cached in CACHE) < 100


def test_a_result_is_a_value_or_an_error() -> None:
    for arguments in [{}, {"value": 1.0, "error": "x"}, {"value": math.inf}]:
        with pytest.raises(ValueError):
            RewardResult(**arguments)
