"""The ledger loses no second, whatever the order of the states."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.core.record.ledger import Ledger, StepSpeed

STEPS = st.lists(
    st.tuples(st.sampled_from(["train", "infer", "reward"]), st.sampled_from(["busy", "input", "output"]), st.floats(0, 100)),
    min_size=1,
    max_size=60,
)


@given(STEPS, st.floats(0, 50))
def test_durations_of_a_name_sum_to_the_time_since_it_appeared(steps, rest):
    ledger, now, first = Ledger(start=10.0), 10.0, {}
    for name, state, pause in steps:
        now += pause
        first.setdefault(name, now)
        ledger.enter(name, state, now)
    now += rest
    assert ledger.names() == list(first)
    for name, begin in first.items():
        assert sum(ledger.durations(name, now).values()) == pytest.approx(now - begin, rel=1e-12, abs=1e-9)
        assert sum(ledger.share(name, now).values()) == pytest.approx(1.0 if now > begin else 0.0)


@given(STEPS)
def test_spans_of_a_name_follow_each_other_without_gap_or_overlap(steps):
    class Shown(list):
        add = list.append

    shown = Shown()
    ledger, now = Ledger(0.0, shown), 0.0
    for name, state, pause in steps:
        now += pause
        ledger.enter(name, state, now)
    shown += ledger.open_spans(now)
    for name in ledger.names():
        mine = [span for span in shown if span.row == name]
        assert all(a.end == b.begin and a.name != b.name for a, b in pairwise(mine))
        assert mine[-1].end == now


def test_a_new_reason_does_not_restart_the_wait():
    ledger = Ledger(start=0.0)
    ledger.enter("trainer", "waiting for input", 1.0, "3 of 64 groups")
    ledger.enter("trainer", "waiting for input", 4.0, "12 of 64 groups")
    assert ledger.current("trainer") == ("waiting for input", 1.0, "12 of 64 groups")
    assert ledger.durations("trainer", 6.0) == {"waiting for input": 5.0}
    ledger.enter("trainer", "processing", 7.0)
    assert ledger.durations("trainer", 9.0) == {"waiting for input": 6.0, "processing": 2.0}
    assert ledger.share("trainer", 9.0) == {"waiting for input": 0.75, "processing": 0.25}


def test_time_cannot_go_back():
    ledger = Ledger(start=5.0)
    with pytest.raises(ValueError, match="up to 5"):
        ledger.enter("a", "busy", 4.0)
    ledger.enter("a", "busy", 8.0)
    with pytest.raises(ValueError, match="up to 8"):
        ledger.enter("a", "idle", 7.0)
    with pytest.raises(ValueError):
        ledger.durations("a", 7.0)


def test_busy_seconds_of_a_step_are_told_by_stage_and_tokens_by_second():
    ledger = Ledger(0.0)
    ledger.enter("stage.generate", "busy", 0.0)
    ledger.enter("stage.train", "waiting for input", 0.0)
    ledger.enter("actor_train", "busy", 0.0)
    speed = StepSpeed(ledger, 0.0)
    ledger.enter("stage.generate", "waiting for output", 3.0)
    ledger.enter("stage.train", "busy", 3.0)
    first = speed.step(80, 4.0)
    ledger.enter("actor_train", "waiting for input", 4.0)
    assert first == pytest.approx(
        {"throughput/response_tokens_per_s": 20.0, "time/generate_s": 3.0, "time/train_s": 1.0, "idle_share/actor_train": 0.0}
    )
    ledger.enter("stage.generate", "busy", 5.0)
    second = speed.step(10, 6.0)
    assert second == pytest.approx(
        {"throughput/response_tokens_per_s": 5.0, "time/generate_s": 1.0, "time/train_s": 2.0, "idle_share/actor_train": 1.0}
    )
