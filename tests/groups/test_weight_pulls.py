"""Publishing every n steps and loading every m groups, on a virtual clock: the run never stands still, staleness keeps its bound,
and no version is asked for that the store was told to forget."""

import math
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.core.engines.fleet import Fleet, WeightPulls
from roll.core.groups.admission import Admission
from roll.core.groups.pipeline_depth import PipelineDepth

sys.path.insert(0, str(Path(__file__).parent))
from virtual_run import simulate
from virtual_weights import VirtualWeights


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    ratio=st.sampled_from([0, 0.5, 1, 1.5, 2, 4]),
    push=st.integers(1, 5),
    pull=st.sampled_from([0, 1, 3, 10, 1000]),
    engines=st.integers(1, 4),
    batch=st.integers(1, 9),
    first_step=st.integers(0, 7),
    policy=st.sampled_from(["wait", "drop"]),
    extra=st.sampled_from([0, 0, 3]),
    adaptive=st.booleans(),
    slots=st.sampled_from([1, 4, 10**9]),
    mortality=st.sampled_from([0, 0, 0.1]),
)
def test_any_two_intervals_keep_the_bound_and_the_run_ends(
    seed, ratio, push, pull, engines, batch, first_step, policy, extra, adaptive, slots, mortality
):
    """Random durations of everything, failing groups, dying engines, a start in the middle of a push interval."""
    if push - 1 > ratio:
        push = math.floor(ratio) + 1  # more is refused before the run: see the next test for why
    rng = random.Random(seed)
    last = first_step + 12
    admission = Admission(batch, ratio, max_steps=last, policy=policy, extra_groups=extra, version=first_step)
    admission.next_step = first_step
    depth = PipelineDepth(ratio, None if adaptive else ratio, floor=push - 1)
    weights = VirtualWeights(
        admission,
        depth,
        push,
        pull,
        engines,
        load_s=lambda _: rng.expovariate(2.0),
        awaited=lambda version: version % 5 == 0,
        dies=lambda _: rng.random() < mortality,
    )
    outcome = simulate(
        admission,
        depth,
        duration=lambda _: rng.lognormvariate(0, 1.0),
        status=lambda _: rng.choice([None, None, None, "reward_error"]),
        train_s=lambda _: rng.expovariate(1.0),
        publish_s=lambda _: rng.expovariate(4.0),
        slots=slots,
        weights=weights,
        first_step=first_step,
    )
    assert not outcome.stuck
    assert admission.trained == last * batch
    assert max(outcome.lags) <= math.ceil(ratio)
    assert all(version % push == 0 for version in weights.published)
    for engine in range(engines):
        versions = [version for loader, version in weights.loads if loader == engine]
        assert versions == sorted(versions) or mortality, "an engine that lives on takes newer versions only"
    assert weights.most_stored <= engines + 2
    if policy == "wait" and not extra:
        assert set(admission.dropped) <= {"reward_error"}, "waiting never drops a group for its age"


@pytest.mark.parametrize("ratio", [0, 0.5, 1, 1.5, 3])
def test_more_than_one_step_beyond_the_ratio_cannot_be_published_at_once(ratio):
    """n − 1 <= α is what the trainer needs, and no more than it needs."""
    for push, stuck in ((math.floor(ratio) + 1, False), (math.floor(ratio) + 2, True)):
        admission, depth = Admission(4, ratio, max_steps=20), PipelineDepth(ratio, ratio)
        weights = VirtualWeights(admission, depth, push)
        assert simulate(admission, depth, duration=lambda _: 0.1, weights=weights).stuck is stuck


def test_an_adaptive_depth_gives_the_trainer_the_batches_of_a_push_interval():
    admission, depth = Admission(4, 4, max_steps=40), PipelineDepth(4, floor=2)
    weights = VirtualWeights(admission, depth, push=3)
    outcome = simulate(admission, depth, duration=lambda _: 0.01, weights=weights)
    assert weights.published == list(range(3, 40, 3))
    assert outcome.lags == [step % 3 for step in range(40) for _ in range(4)], (
        "instant rollouts are as fresh as the weights allow"
    )


def test_pulling_every_m_groups_saves_loads_within_the_bound():
    """Two engines, batches of 8, rollouts as fast as training: each engine takes part in 4 groups a step."""
    loads, lags = {}, {}
    for pull in (0, 4, 8, 1000):
        admission, depth = Admission(8, 4, max_steps=60), PipelineDepth(4, 1.0)
        weights = VirtualWeights(admission, depth, pull=pull, engines=2)
        outcome = simulate(admission, depth, duration=lambda group: 0.8 + 0.1 * (group % 4), slots=8, weights=weights)
        loads[pull], lags[pull] = len(weights.loads), sum(outcome.lags) / len(outcome.lags)
        assert max(outcome.lags) <= 4
    assert loads[0] == loads[4] == 2 * 59, "after step 60 nobody looks any more"
    assert 0.9 * 59 < loads[8] < 1.1 * 59, "every other version"
    assert 2 * 59 // 5 < loads[1000] < 2 * 59 // 3, "at the latest when the bound is reached"
    assert lags[0] < 1 < lags[4] < lags[8]


def test_engines_that_put_versions_off_differ_and_admission_counts_from_the_oldest():
    admission, depth = Admission(8, 4, max_steps=60), PipelineDepth(4, 1.0)
    weights = VirtualWeights(admission, depth, pull=4, engines=3)
    outcome = simulate(admission, depth, duration=lambda group: 0.3 if group % 3 else 1.5, slots=8, weights=weights)
    assert weights.spread >= 1
    assert max(outcome.lags) <= 4


def pulls(versions, interval):
    fleet = Fleet(len(versions), 0, max_restarts=1)
    for engine, version in enumerate(versions):
        fleet.loaded(engine, version)
    return fleet, WeightPulls(fleet, interval)


def test_an_engine_is_due_after_its_own_groups():
    _, pull = pulls([0, 0], 2)
    pull.publish(1)
    pull.group_ended({0, 1})
    assert pull.due(starving=False) == []
    pull.group_ended({1})
    assert pull.due(starving=False) == [1]
    assert pull.begin() == 1
    pull.end([1])
    pull.publish(2)
    assert pull.due(starving=False) == [], "its count begins anew"


def test_starving_rollouts_make_those_load_that_hold_them_back():
    fleet, pull = pulls([0, 3, 0], 100)
    pull.publish(5)
    assert pull.due(starving=True) == [0, 2]
    fleet.died(0)
    assert pull.due(starving=True) == [2], "an engine that is down loads when it comes up"


def test_an_awaited_version_is_put_off_by_nobody_also_when_a_newer_one_follows():
    fleet, pull = pulls([0, 3], 100)
    pull.publish(4, awaited=True)
    assert pull.due(starving=False) == [0, 1]
    pull.publish(5)
    pull.begin()
    fleet.loaded(0, 4)
    pull.end([0])
    assert pull.due(starving=False) == [1], "engine 0 has what was asked for"
    assert pull.needed == {3, 4, 5}


def test_what_is_sent_while_it_is_made_goes_to_those_who_will_be_due():
    fleet, pull = pulls([0, 0, 3], 2)
    assert pull.ahead(3) == [0, 1]
    fleet.died(0)
    assert pull.ahead(3) == [1], "an engine that is down loads what the others serve"
    pull.publish(3)
    assert pull.ahead(3) == [], "it is there, and sent from the store"


def test_the_past_is_not_published_again():
    _, pull = pulls([0], 0)
    pull.publish(3)
    with pytest.raises(ValueError, match="version 3 published after version 3"):
        pull.publish(3)
