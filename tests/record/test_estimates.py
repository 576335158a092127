"""avg@n and pass@k against their definitions, and how often their intervals hold the truth."""

import random
from itertools import combinations, pairwise
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.core.record.estimates import Estimate, avg, figures, numbers_of_attempts, pass_at, pass_at_k, wilson

OUTCOMES = st.lists(st.lists(st.booleans(), max_size=6), max_size=12)


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_share_of_all_choices_of_k_rollouts_with_a_success(n):
    for c in range(n + 1):
        rollouts = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            chosen = list(combinations(rollouts, k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, chosen)) / len(chosen), abs=1e-15)


@pytest.mark.parametrize(("n", "k", "p"), [(8, 1, 0.3), (8, 4, 0.3), (8, 8, 0.05), (200, 100, 0.01)])
def test_pass_at_k_is_unbiased(n, k, p):
    """Its mean over all outcomes of n rollouts is the chance that one of k succeeds, which 1 - (1 - c/n)^k is not."""
    chance = [comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    assert sum(weight * pass_at_k(n, c, k) for c, weight in enumerate(chance)) == pytest.approx(1 - (1 - p) ** k)
    if k > 1:
        naive = sum(weight * (1 - (1 - c / n) ** k) for c, weight in enumerate(chance))
        assert abs(naive - (1 - (1 - p) ** k)) > 0.01


@given(OUTCOMES)
def test_pass_at_1_is_the_average(outcomes):
    one, average = pass_at(outcomes, 1), avg(outcomes)
    if average is None:
        assert one is None and not any(outcomes)
    else:
        assert one is not None and tuple(one) == pytest.approx(tuple(average))


@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=12))
def test_figures_lie_in_their_intervals_and_more_attempts_solve_more(outcomes):
    found = figures(outcomes, 5)
    assert list(found) == ["avg@5", "pass@2", "pass@4", "pass@5"]
    for value, low, high, prompts in found.values():
        assert 0 <= low <= value <= high <= 1 and low < high
        assert prompts == len(outcomes)
    values = [estimate.value for estimate in found.values()]
    assert all(one <= other + 1e-12 for one, other in pairwise(values))
    assert found["pass@5"].value == pytest.approx(sum(map(any, outcomes)) / len(outcomes))


@pytest.mark.parametrize(("n", "k"), [(1, []), (2, [2]), (3, [2, 3]), (8, [2, 4, 8]), (10, [2, 4, 8, 10])])
def test_which_k_are_reported(n, k):
    assert numbers_of_attempts(n) == k


def test_rollouts_that_could_not_be_judged_leave_a_prompt_out_only_where_too_few_are_left():
    outcomes = [[True, False, True, False], [True, False], [True], []]
    found = figures(outcomes, 4)
    assert (found["avg@4"].value, found["avg@4"].prompts) == (pytest.approx(2 / 3), 3)
    assert (found["pass@2"].value, found["pass@2"].prompts) == (pytest.approx((5 / 6 + 1) / 2), 2)
    assert found["pass@4"].prompts == 1
    assert figures([[], []], 4) == {}
    assert list(figures([[True]], 4)) == ["avg@4"]


def test_wilsons_interval():
    """Of no success in n draws it ends at z² / (n + z²); the other is from E. B. Wilson's formula, computed by hand."""
    assert wilson(0.0, 10) == (0.0, pytest.approx(0.27753, abs=1e-5))
    assert wilson(1.0, 10) == (pytest.approx(1 - 0.27753, abs=1e-5), 1.0)
    assert wilson(0.5, 100) == (pytest.approx(0.40383, abs=1e-5), pytest.approx(0.59617, abs=1e-5))


def test_an_interval_counts_prompts_not_rollouts():
    one_each = [[True]] * 12 + [[False]] * 28
    single = avg(one_each)
    assert single == Estimate(0.3, *wilson(0.3, 40), 40)
    alike = avg([rollouts * 16 for rollouts in one_each])
    assert alike == single, "sixteen rollouts that are always alike say no more than one"
    apart = avg([[True] * 3 + [False] * 7] * 20 + [[True, False, False, False, False] * 2] * 20)
    assert apart is not None and single is not None
    assert apart.high - apart.low < 0.6 * (single.high - single.low)
    assert (apart.low, apart.high) == wilson(apart.value, 400), "and never more than all of them, were they independent"


@pytest.mark.parametrize(("a", "b"), [(1, 1), (0.3, 0.3), (0.5, 4), (50, 50)])
@pytest.mark.parametrize("k", [1, 4])
def test_nineteen_of_twenty_intervals_hold_the_truth(a, b, k):
    """Prompts whose chances have a beta distribution, 40 of them with 8 rollouts; 600 evaluations."""
    drawn, truth = random.Random(5), 1.0
    for i in range(k):  # E[(1 - p)^k]
        truth *= (b + i) / (a + b + i)
    truth, held = 1 - truth, 0
    for _ in range(600):
        chances = [drawn.betavariate(a, b) for _ in range(40)]
        found = pass_at([[drawn.random() < chance for _ in range(8)] for chance in chances], k)
        assert found is not None
        held += found.low <= truth <= found.high
    assert held / 600 >= 0.92
    assert k > 1 or held / 600 <= 0.98, "of pass@k they may be longer than they need be"
