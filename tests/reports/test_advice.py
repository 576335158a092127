"""What the adviser says of runs on a virtual clock whose best setting is known, and what comes of following it."""

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from roll.core.groups.admission import Admission
from roll.core.groups.pipeline_depth import PipelineDepth
from roll.core.record.run_progress import ENGINES, Places
from roll.reports.advice import LEAST_STEPS, Halves, advise, sentences, slow_link

sys.path.insert(0, str(Path(__file__).parents[1] / "groups"))
from virtual_run import simulate

pytestmark = pytest.mark.slow

GROUPS, STEPS = 8, 60


def virtual(ratio, rollout_s, train_s, slots, devices=(1, 1)):
    """A run whose rollouts and steps take so long; what is seen of it. Places are worth the same wherever they are."""
    admission = Admission(GROUPS, ratio, STEPS)
    outcome = simulate(
        admission, PipelineDepth(ratio, fixed=ratio), duration=lambda _: rollout_s, train_s=lambda _: train_s, slots=slots
    )
    step_s, idle_s = outcome.wall_s / STEPS, outcome.wait_s / STEPS
    busy = min(step_s, max(rollout_s * GROUPS / slots, rollout_s))
    return Halves(
        steps=STEPS,
        step_s=step_s,
        idle_s=idle_s,
        rollout_s=busy,
        ratio=ratio,
        batch=GROUPS,
        places=Places(slots, ENGINES, 1),
        rollout_devices=devices[0],
        train_devices=devices[1],
    )


def followed(rollout_s, train_s, slots, seen):
    """The run with all advice about `seen`, and the last of it."""
    advices = advise(seen)
    told = {advice.key: advice.value for advice in advices}
    infer, train = seen.rollout_devices, seen.train_devices
    if "device_mapping" in told:
        words = told["device_mapping"].split()
        infer, train = int(words[0]), int(words[3])
    places = round(slots * infer / seen.rollout_devices)
    places = int(told.get(ENGINES, places))
    ratio = float(told.get("async_generation_ratio", seen.ratio))
    return virtual(ratio, rollout_s, train_s * seen.train_devices / train, places, (infer, train)), advices


@pytest.mark.parametrize(
    ("ratio", "rollout_s", "train_s", "slots", "devices", "keys"),
    [
        (0, 1.0, 1.0, 8, (1, 1), ["async_generation_ratio"]),
        (0, 3.0, 1.0, 8, (1, 1), ["async_generation_ratio"]),  # slots for one batch: rollouts at full speed after it
        (0, 3.0, 1.0, 64, (1, 1), ["async_generation_ratio"]),  # each is long, and there is room for more
        (1, 4.0, 1.0, 64, (1, 1), ["async_generation_ratio"]),
        (1, 1.0, 1.0, 4, (1, 1), [ENGINES]),
        (1, 2.0, 1.0, 8, (4, 4), ["device_mapping"]),
        (1, 1.0, 4.0, 8, (4, 4), ["device_mapping"]),
        (0, 2.0, 4.0, 8, (4, 4), ["async_generation_ratio", "device_mapping"]),
    ],
)
def test_who_follows_the_advice_gets_about_what_was_predicted(ratio, rollout_s, train_s, slots, devices, keys):
    seen = virtual(ratio, rollout_s, train_s, slots, devices)
    after, advices = followed(rollout_s, train_s, slots, seen)
    assert [advice.key for advice in advices][: len(keys)] == keys
    assert after.step_s < 0.95 * seen.step_s
    assert after.step_s == pytest.approx(advices[-1].step_s, rel=0.15)


@pytest.mark.parametrize(("rollout_s", "train_s", "slots"), [(1.0, 1.0, 16), (0.5, 2.0, 16), (2.0, 2.0, 8)])
def test_where_nothing_is_to_be_won_nothing_is_advised(rollout_s, train_s, slots):
    seen = virtual(1, rollout_s, train_s, slots)
    assert advise(seen) == []
    (line,) = sentences(seen)
    assert line.startswith("balanced: ")


def test_no_advice_is_worth_less_than_what_it_is_told_for():
    for ratio in (0, 0.5, 1, 2, 4):
        for rollout_s in (0.3, 1.0, 3.0, 9.0):
            for slots in (2, 8, 64):
                for devices in ((1, 1), (1, 3), (4, 4)):
                    seen = virtual(ratio, rollout_s, 1.0, slots, devices)
                    steps = [seen.step_s, *(advice.step_s for advice in advise(seen))]
                    assert all(later < 0.95 * before for before, later in pairwise(steps))


def test_shared_devices_and_short_runs_are_told_nothing():
    seen = virtual(0, 1.0, 1.0, 8)
    shared = replace(seen, apart=False, turning=0.2)
    assert advise(shared) == [] and advise(replace(shared, overlap=True)) == []
    assert advise(replace(seen, steps=LEAST_STEPS - 1)) == [] and list(sentences(replace(seen, steps=LEAST_STEPS - 1))) == []


def test_halves_of_one_device_are_told_how_they_share_it_and_what_turns_cost_and_no_other_division():
    seen = replace(virtual(0, 1.0, 1.0, 8), apart=False)
    turns = "the halves take turns on their devices: training waited for groups 50% of the time"
    assert list(sentences(seen)) == [turns]
    first, second = sentences(replace(seen, turning=0.2))
    assert first == turns
    assert second.startswith(
        "sharing: auto with async_generation_ratio: 1: nobody sleeps and wakes, which took 20% of the time, if"
    )
    (line,) = sentences(replace(virtual(1, 4.0, 1.0, 8), apart=False, overlap=True, turning=0.2))
    assert "at the same time: training waited for groups 7" in line and "is not known" in line
    assert not [word for word in ("balanced", "device_mapping", "bottleneck") if word in line]


def test_halves_that_take_turns_in_one_process_are_advised_to_part():
    where, what = sentences(replace(virtual(0, 1.0, 1.0, 8), one_process=True))
    assert where == "the halves wait for each other: training for groups 50% of the time, rollouts for training 50%"
    assert what.startswith("async_generation_ratio: 1: ") and what.endswith(", if both run without --local")


def test_the_wait_is_the_figure_of_the_verdict_and_dropped_groups_are_named_as_its_cause():
    lost = "69% of the groups (2,179 of 3,139) are dropped (equal_rewards 2,179)"
    first, where = sentences(virtual(1, 2.0, 2.0, 8), 0.83, lost)
    assert first.startswith(f"{lost}: ") and "a larger group" in first
    assert "training waited for groups 83% of the time" in where


def test_where_groups_wait_for_a_reward_it_is_named_and_nothing_of_the_halves_is_advised():
    slow = "rewards.math (at work 95% of the time, actor_infer 10%)"
    (line,) = sentences(virtual(1, 4.0, 1.0, 8), 0.9, slow=slow)
    assert line.startswith(f"training waited for groups 90% of the time, and groups for {slow}: a faster reward")
    assert "max_concurrency" in line and "async_generation_ratio" not in line


def test_more_places_are_not_advised_to_engines_without_memory_for_them():
    seen = virtual(1, 1.0, 1.0, 4)
    assert advise(replace(seen, places=Places(4, ENGINES, 0))) == []


def test_the_sentences_name_the_bottleneck_the_setting_the_gain_and_what_is_taken_for_granted():
    where, what = sentences(virtual(0, 1.0, 1.0, 8))
    assert where == "the halves wait for each other: training for groups 50% of the time, rollouts for training 50%"
    assert next(iter(sentences(virtual(1, 4.0, 1.0, 8)))).startswith(
        "actor_infer is the bottleneck: training waited for groups 7"
    )
    assert what.startswith("async_generation_ratio: 1: a step would take about 1 s instead of 2 s (50% less), if ")


def test_a_link_is_told_with_its_rate_where_weights_are_on_their_way_most_of_the_time():
    updates = {"count": 20, "bytes": 48e6, "send_s": 40.0}
    (told,) = slow_link(updates, 50.0, whole=True)
    assert told.startswith(
        "the link to the engines is the bottleneck: weights were on their way 80% of the time, 2 s for each of 20 versions "
        "(2.4 MB at 1.2 MB/s); "
    )
    (told,) = slow_link(updates, 50.0, whole=False)
    assert "MB" not in told, "fewer bytes were sent than the versions have"


def test_a_link_that_takes_minutes_for_a_version_is_told_after_few_of_them():
    (told,) = slow_link({"count": 3, "bytes": 3 * 269e6, "send_s": 660.0}, 700.0, whole=True)
    assert "220 s for each of 3 versions (269 MB at 1.22 MB/s)" in told


@pytest.mark.parametrize(("count", "send_s"), [(20, 20.0), (20, 0.0), (2, 40.0), (0, 0.0)])
def test_a_link_that_leaves_time_or_has_shown_too_little_is_not_told(count, send_s):
    assert slow_link({"count": count, "bytes": 48e6, "send_s": send_s}, 50.0, whole=True) == []
