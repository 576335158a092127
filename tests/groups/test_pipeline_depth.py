import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.core.groups.pipeline_depth import PROBE, PipelineDepth, StepTimes


def settle(depth, steps=10, **seen):
    for _ in range(steps):
        depth.observe(**seen)


def test_the_first_wait_is_answered_with_the_whole_steps_of_lead_it_needs():
    for wait_s, lead in ((0.5, 1), (2.5, 3), (9.0, 4)):
        depth = PipelineDepth(4)
        depth.observe(wait_s=wait_s, train_s=1.0, slack_s=0)
        assert depth.depth == lead


def test_a_step_of_lead_is_not_given_up_while_a_batch_takes_longer_than_a_probe_would_leave_it():
    depth = PipelineDepth(2)
    depth.observe(wait_s=0.5, train_s=1.0, slack_s=0)
    settle(depth, steps=100, wait_s=0.0, train_s=1.0, slack_s=0.5)
    assert depth.depth == 1


def test_depth_never_passes_the_bound_and_a_fixed_one_stays():
    depth = PipelineDepth(1)
    settle(depth, wait_s=100.0, train_s=1.0, slack_s=0)
    assert depth.depth == 1
    fixed = PipelineDepth(2, fixed=1.5)
    settle(fixed, wait_s=100.0, train_s=1.0, slack_s=0)
    assert fixed.depth == 1.5


def test_data_that_comes_early_makes_the_pipeline_shallower_step_by_step():
    depth = PipelineDepth(2)
    depth.observe(wait_s=1.0, train_s=1.0, slack_s=0)
    before = depth.depth
    settle(depth, steps=3, wait_s=0.0, train_s=1.0, slack_s=0.9)
    assert before - 2 * PROBE <= depth.depth < before
    settle(depth, steps=100, wait_s=0.0, train_s=1.0, slack_s=0.9)
    assert depth.depth == 0


def test_a_probe_that_made_the_trainer_wait_is_taken_back_and_not_repeated_soon():
    depth = PipelineDepth(2)
    depth.observe(wait_s=1.0, train_s=1.0, slack_s=0)
    needed = depth.depth
    waits = 0
    for _ in range(100):
        waiting = depth.depth < needed
        waits += waiting
        depth.observe(wait_s=0.9 if waiting else 0.0, train_s=1.0, slack_s=0.5)
    assert depth.depth in (needed, needed - PROBE)
    assert waits <= 12


@pytest.mark.parametrize(
    ("times", "wait", "slack"),
    [
        # asked for when the step before was done at 10, nothing is scored ahead
        (StepTimes(10, 13, 13, 0, 10), 3, 0),
        (StepTimes(10, 4, 10, 0, 10), 0, 6),
        # asked for at 5, and scored in 2 while the step before trains until 10
        (StepTimes(5, 6, 6, 2, 10), 0, 2),
        (StepTimes(5, 9, 9, 2, 10), 1, 0),
        (StepTimes(5, 12, 12, 2, 10), 4, 0),
        # scoring is what takes long, and scored the step before until 7: no group came late
        (StepTimes(7, 3, 6, 8, 10), 0, 4),
    ],
)
def test_only_a_wait_for_groups_counts_and_not_that_scoring_takes_long(times, wait, slack):
    assert (times.wait_s, times.slack_s) == (wait, slack)


def test_what_was_trained_again_counts_as_waiting_for_rollouts_that_were_never_started():
    depth = PipelineDepth(4)
    depth.observe(wait_s=0.0, train_s=2.0, slack_s=0.0, reused=0.5)
    assert depth.depth == 1


def follow(depth, drift, steps=200):
    """A trainer that always waits, and data whose ln ESS falls by `drift` with each batch of depth."""
    seen = []
    for _ in range(steps):
        seen.append(depth.depth)
        depth.observe(wait_s=1.0, train_s=1.0, slack_s=0.0, ess=math.exp(-drift * depth.depth))
    return seen


@pytest.mark.parametrize("drift", [0.1, 0.3, 1.0])
def test_the_depth_stays_where_the_effective_sample_size_is_the_target(drift):
    seen = follow(PipelineDepth(8, target_ess=0.5), drift)
    wanted = math.log(2) / drift
    assert all(abs(depth - wanted) <= 2 * PROBE for depth in seen[30:]), seen


def test_batches_of_the_depth_before_do_not_lower_it_again():
    """They have the effective sample size of that depth, and come one after the other."""
    depth = PipelineDepth(4, target_ess=0.5)
    depth.observe(wait_s=4.0, train_s=1.0, slack_s=0.0)
    asked = [depth.depth] * 5
    for _ in range(10):
        asked.append(depth.depth)
        depth.observe(wait_s=4.0, train_s=1.0, slack_s=0.0, ess=math.exp(-0.4 * asked[-5]))
        assert depth.depth >= math.log(2) / 0.4 - 1e-9


def test_data_that_count_leave_the_depth_alone():
    plain, bounded = PipelineDepth(8), PipelineDepth(8, target_ess=0.5)
    assert follow(plain, 0.05)[50:] == follow(bounded, 0.05)[50:]


def test_the_depth_rises_again_when_the_policy_moves_less():
    depth = PipelineDepth(4, target_ess=0.5)
    assert max(follow(depth, 0.7)[30:]) < 1.5
    assert follow(depth, 0.01)[-1] == 4


def test_who_watches_the_effective_sample_size_begins_with_a_batch_ahead():
    """Nobody knows yet whether rollouts are slow. If they are not, it is given up like any other depth."""
    depth = PipelineDepth(4, target_ess=0.5)
    assert (depth.depth, PipelineDepth(4).depth, PipelineDepth(0.5, target_ess=0.5).depth) == (1, 0, 0.5)
    depth.observe(wait_s=1.5, train_s=1.0, slack_s=0.0, ess=1.0)
    assert depth.depth == 3
    instant = PipelineDepth(4, target_ess=0.5)
    settle(instant, steps=20, wait_s=0.0, train_s=1.0, slack_s=1.0, ess=1.0)
    assert instant.depth == 0


def test_the_target_takes_no_batch_that_the_trainer_needs_of_one_version():
    """Nor does it end in a division where data are worth nothing."""
    depth = PipelineDepth(4, floor=1, target_ess=0.9)
    for _ in range(50):
        depth.observe(wait_s=1.0, train_s=1.0, slack_s=0.0, ess=1e-9)
    assert depth.depth == pytest.approx(1, abs=1e-6)
    assert PipelineDepth(4, fixed=2, target_ess=0.5).depth == 2


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0.1, 5), st.floats(1e-12, 1)), max_size=60), st.floats(0.05, 1))
def test_whatever_is_measured_the_depth_stays_within_its_bounds(steps, target):
    depth = PipelineDepth(3, floor=1, target_ess=target)
    for wait, train, ess in steps:
        depth.observe(wait, train, 0.0, ess=ess)
        assert 1 <= depth.depth <= 3
