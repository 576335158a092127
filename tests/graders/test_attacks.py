"""Generated answers that have not earned a reward earn none. Ten thousand of them: benchmarks/attacks.py."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from hostile_programs import answering, deceiving, forged, leaving
from judged import judged
from unearned import Attack, choices, instructions, mathematics, programs

from roll.core.data.sample import Prompt, Sample
from roll.core.rewards.worker import RewardWorker
from roll.graders.answers import choice_of
from roll.graders.code_rule import CodeSandboxRewardWorker
from roll.graders.instructions import IFEVAL, OPEN_INSTRUCT, GeneralRuleRewardWorker
from roll.graders.math_grader import grade
from roll.graders.rules import CrossThinkQARuleRewardWorker, GeneralValRuleRewardWorker, MultipleChoiceBoxedRuleRewardWorker


def earned(cls: type[RewardWorker], attacks: Iterator[Attack], count: int, **arguments: Any) -> list[Attack]:
    """The attacks that earn, or have no verdict."""
    tried = list(islice(attacks, count))
    prompts = [Prompt(f"a/0/{i}", [1], "?", "a", "a", each.truth, each.row) for i, each in enumerate(tried)]
    given = zip(prompts, tried, strict=True)
    samples = [Sample(prompt, 0, [2] * 400, [0.0] * 400, [], "stop", response_text=each.response) for prompt, each in given]
    results = judged(cls({"timeout_s": 6.0, "max_concurrency": 2, "reward_args": arguments}), samples)
    return [each for each, found in zip(tried, results, strict=True) if found.value is None or found.value > 0]


@pytest.mark.slow
def test_no_answer_to_mathematics_earns_by_its_form() -> None:
    tried = list(islice(mathematics(1), 200))
    assert len({each.kind for each in tried}) >= 45
    assert [each for each in tried if grade({"ground_truth": each.truth, "response": each.response})] == []


@pytest.mark.parametrize(
    "worker", [GeneralValRuleRewardWorker, MultipleChoiceBoxedRuleRewardWorker, CrossThinkQARuleRewardWorker]
)
def test_no_choice_earns_that_is_none(worker: type[RewardWorker]) -> None:
    assert earned(worker, choices(2), 500) == []


@pytest.mark.parametrize("kind", ["strict", "loose", "soft"])
def test_no_instruction_is_followed_by_a_form_without_content(kind: str) -> None:
    assert earned(GeneralRuleRewardWorker, instructions(3, IFEVAL | OPEN_INSTRUCT), 1000, reward_type=kind) == []


@pytest.mark.slow
def test_no_program_earns_by_cheating() -> None:
    cheats = [*forged(), *leaving(), *deceiving(), *answering()]
    assert earned(CodeSandboxRewardWorker, programs(4, cheats), 40, cpu_s=1, memory_mb=512) == []


@pytest.mark.parametrize("struck", ["\\frac{19}{5}", "\\sqrt{2}", "\\pi", "(1, 2)", "-3", "42"])
def test_what_tex_does_not_read_is_no_answer(struck: str) -> None:
    """Behind a percent sign."""
    assert grade({"ground_truth": struck, "response": f"$\\boxed{{7 % {struck}\n}}$"}) == 0.0


@pytest.mark.parametrize(
    ("said", "earns"),
    [
        ("12.14 = 12.15", 0.0),
        ("12.16 = 12.15", 0.0),
        ("12.1478 = 12.15", 1.0),
        ("\\frac{243}{20} = 12.15", 1.0),
        ("12.155 = 12.15", 1.0),
    ],
)
def test_a_side_of_an_equation_is_the_other_one_rounded_or_another_number(said: str, earns: float) -> None:
    assert grade({"ground_truth": "12.15", "response": f"$\\boxed{{{said}}}$"}) == earns


@pytest.mark.parametrize(
    ("text", "letter"),
    [("A or B", ""), ("A, B, C", ""), ("**A** and **B**.", ""), ("A/B", ""), ("A, B is wrong", "A"), ("A. And B is not", "A")],
)
def test_letters_that_are_listed_are_no_choice(text: str, letter: str) -> None:
    assert choice_of(f"The answer is {text}").letter == letter
