"""Right solutions with ordinary tests of every kind earn 1, or the tester says that it cannot judge; cheats earn nothing."""

from __future__ import annotations

from collections import Counter

import pytest
from code_samples import CONFIG, sample
from honest_pairs import PAIRS, UNABLE
from judged import judged
from unearned_programs import CHEATS, RUNNING

from roll.core.rewards.worker import RewardResult
from roll.graders.code_rule import CodeSandboxRewardWorker

pytestmark = pytest.mark.slow
CANNOT = "the tester cannot do this"
LARGE = "torch does not load within"
"""On a machine with much else to do."""


def results(programs: list[tuple[str, str, str]]) -> list[RewardResult]:
    worker = CodeSandboxRewardWorker({**CONFIG, "timeout_s": 12.0, "reward_args": {"cpu_s": 8}})
    return judged(worker, [sample(source, [test]) for _, source, test in programs])


@pytest.mark.parametrize("part", range(4))
def test_right_solutions_earn_whatever_their_tests_do_with_them(part: int) -> None:
    chosen = PAIRS[part::4]
    found = [(case[0], result) for case, result in zip(chosen, results(chosen), strict=True)]
    assert len(found) >= 40
    assert [each for each in found if each[1].value != 1.0 and LARGE not in (each[1].error or "")] == []


def test_what_the_tester_cannot_ask_is_no_judgement() -> None:
    for (name, _, _), result in zip(UNABLE, results(UNABLE), strict=True):
        assert result.value is None and CANNOT in (result.error or ""), (name, result)


@pytest.mark.parametrize("part", range(4))
def test_no_cheat_earns(part: int) -> None:
    """A few say themselves whether they are right, and cannot be told from honest objects that do: they are not judged."""
    chosen = CHEATS[part::4]
    graded = results(chosen)
    assert [case[0] for case, result in zip(chosen, graded, strict=True) if result.value not in (0.0, None)] == []
    assert all(CANNOT in (result.error or "") for result in graded if result.value is None)
    assert Counter(result.value for result in graded)[None] <= 8


def test_what_a_solution_has_written_does_not_run_in_the_tester() -> None:
    graded = results(RUNNING)
    assert [case[0] for case, result in zip(RUNNING, graded, strict=True) if result.value not in (0.0, None)] == []
    assert all(CANNOT in (result.error or "") for result in graded if result.value is None)


def test_the_task_says_which_function_is_asked_for_and_what_is_a_class() -> None:
    both = "def factorial(n): return 1\ndef prod(a): return 1"
    right = "def prod(a):\n    r = 1\n    for x in a: r *= x\n    return r"
    test = "assert factorial(5) == prod(range(1, 6))"
    build = "class Build:\n    def __init__(self, n): self.n = n\n    def __contains__(self, o): return o == self.n"
    given = [
        sample(both, [test], prompt="Write `prod(a)`."),
        sample(right, [test], prompt="Write `prod(a)`."),
        sample(both, [test, "assert factorial(3) == 6"], prompt="?"),
        sample(build, ["assert Build(8).contains(8) or 8 in Build(8)"], prompt="class Build:"),
    ]
    graded = judged(CodeSandboxRewardWorker(CONFIG), given)
    assert [result.value for result in graded[:3]] == [0.0, 1.0, 0.0]
    assert graded[3].value == 0.0, "it has no method contains"
