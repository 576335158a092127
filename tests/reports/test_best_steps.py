"""The best steps: what a metric says of them, and that no order of writing, judging and restarting loses the best checkpoint."""

import json
import math
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.core.configs.watching import EarlyStoppingConfig, KeepBestConfig
from roll.core.groups.schedule import StepSchedule
from roll.core.record.checkpoint import TRAINER, CheckpointStore
from roll.core.record.run_progress import RunProgress
from roll.reports.best_steps import ScoredStep, awaited, best_of, kept, ranked, told_best, waiting
from roll.reports.early_stopping import EarlyStopping
from roll.reports.keep_best import KeepBest, Retention

METRIC = "val_correct/all/mean"
numbers = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.5, 1.0, -1.0, math.nan, math.inf, -math.inf])
modes = st.sampled_from(["max", "min"])


@given(st.dictionaries(st.integers(0, 20), numbers), modes)
def test_the_ranking_has_each_finite_value_once_the_best_first_and_the_earlier_of_equal_ones(values, mode):
    found = ranked(values, mode)
    assert {each.step for each in found} == {step for step, value in values.items() if math.isfinite(value)}
    for one, other in pairwise(found):
        better = one.value > other.value if mode == "max" else one.value < other.value
        assert better or (one.value == other.value and one.step < other.step)


@given(st.dictionaries(st.integers(0, 20), numbers), modes, st.integers(1, 3), st.sets(st.integers(0, 20)))
def test_only_checkpoints_that_are_there_are_kept_and_nothing_better_is_left_out(values, mode, count, steps):
    staying = kept(values, mode, count, steps)
    assert len(staying) == min(count, sum(step in steps for step, value in values.items() if math.isfinite(value)))
    left = [each for each in ranked(values, mode) if each.step in steps and each not in staying]
    assert all(ranked({1: worst.value, 0: each.value}, mode)[0].value == worst.value for worst in staying[-1:] for each in left)


def test_a_validation_is_awaited_until_two_later_ones_are_known():
    assert awaited([10, 20, 30], set()) == {10, 20, 30}
    assert awaited([10, 20, 30], {20}) == {10, 30}
    assert awaited([10, 20, 30, 40], {20, 30}) == {40}


def plain_waiting(values, mode, least):
    """By the definition: each gain is measured from the last."""
    best, since = None, 0
    for step, value in values:
        signed = value if mode == "max" else -value
        if math.isfinite(value) and (best is None or (signed > best[1] and signed - best[1] >= least - 1e-12)):
            best, since = (step, signed), 0
        else:
            since += 1
    return (best and best[0]), since


@given(st.lists(numbers, max_size=12), modes, st.sampled_from([0.0, 0.1, 0.25, 0.5]))
def test_patience_counts_the_values_since_the_last_gain(values, mode, least):
    scored = [ScoredStep(step, value) for step, value in enumerate(values)]
    found = waiting(scored, mode, least)
    assert (found.best and found.best.step, found.since) == plain_waiting(scored, mode, least)


def test_a_gain_of_just_the_least_is_one_in_spite_of_rounding_and_slow_gains_add_up():
    assert waiting([ScoredStep(1, 0.2), ScoredStep(2, 0.3)], "max", 0.1).since == 0, "0.3 - 0.2 < 0.1"
    assert waiting([ScoredStep(step, 0.04 * step) for step in range(4)], "max", 0.1) == (ScoredStep(3, 0.12), 0)
    assert waiting([ScoredStep(1, 0.5), ScoredStep(2, 0.5)], "max", 0.0).since == 1


# -- whole courses of a run ---------------------------------------------------------------------------------------------


def save(store, step):
    (store.begin(step) / TRAINER / "weights").write_text("")
    store.commit(step, {}, [])


class Course:
    """A run whose steps are multiples of 1; every second is validated, all are saved."""

    def __init__(self, root, mode, count, keep):
        self.root, self.keep = root, keep
        self.schedule = StepSchedule(last_step=1000, validate_every=2)
        self.best = KeepBest(KeepBestConfig(mode=mode, count=count), self.schedule, root, keep, None)
        self.store = CheckpointStore(root, keep, None, Retention(root, self.best).spares)
        self.rows, self.step, self.saved, self.newest_judged = [], 0, {}, 0
        self.best.on_run_begin(0, [])

    def train(self):
        self.step += 1
        save(self.store, self.step)

    def judge(self, value):
        """The next validation ends, in order."""
        due = self.newest_judged + 2
        if due <= self.step:
            self.newest_judged = due
            row = {"val/errors": 0.0, METRIC: value}
            self.rows.append({"step": due, "val/errors": 0.0, METRIC: value if math.isfinite(value) else None})
            self.best.on_validation(due, row)

    def restart(self):
        """From the newest checkpoint, as from metrics.jsonl."""
        self.best = KeepBest(self.best._rule, self.schedule, self.root, self.keep, None)
        self.store = CheckpointStore(self.root, self.keep, None, Retention(self.root, self.best).spares)
        self.best.on_run_begin(self.step, self.rows)


courses = st.lists(st.one_of(st.sampled_from(["train", "train", "restart"]), numbers), max_size=30)


@settings(max_examples=150, deadline=None)
@given(courses, modes, st.integers(1, 3), st.integers(1, 3))
def test_whatever_the_order_the_best_and_the_newest_checkpoints_stay_and_little_else(events, mode, count, keep):
    with TemporaryDirectory() as folder:
        course, root = Course(Path(folder) / "checkpoints", mode, count, keep), Path(folder) / "checkpoints"
        for event in events:
            if event == "train":
                course.train()
            elif event == "restart":
                course.restart()
            else:
                course.judge(event)
            values = {row["step"]: row[METRIC] for row in course.rows if row[METRIC] is not None}
            best = ranked(values, mode)[:count]
            there = set(course.store.steps())
            pending = {step for step in range(2, course.step + 1, 2) if step > course.newest_judged}
            needed = {each.step for each in best} | pending | set(range(1, course.step + 1)[-keep:])
            assert needed <= there
        course.best.on_summary({"warnings": []}, RunProgress(course.step, 1000))
        course.best.on_run_end({})
        assert set(course.store.steps()) == needed if events else True
        link, reason = root / "best", root / "best.json"
        assert link.exists() == reason.exists() == bool(best if events else ())
        if link.exists():
            why = json.loads(reason.read_text())
            assert link.resolve() == root / f"step-{best[0].step}" and (why["step"], why["value"]) == best[0]
            assert [each["step"] for each in why["kept"]] == [each.step for each in best]


def test_the_link_follows_when_validation_and_checkpoint_are_both_there(tmp_path):
    """The validation of step 2 ends before its checkpoint is written."""
    course = Course(tmp_path, "max", 1, 1)
    course.best.on_validation(2, {"val/errors": 0.0, METRIC: 0.5})
    summary = {}
    course.best.on_summary(summary, RunProgress(2, 10))
    assert summary["best"] is None and not (tmp_path / "best").is_symlink()
    save(course.store, 2)
    course.best.on_summary(summary, RunProgress(2, 10))
    assert summary["best"]["step"] == 2 and (tmp_path / "best").resolve() == tmp_path / "step-2"


def test_steps_that_are_taken_back_take_the_link_with_them(tmp_path):
    course = Course(tmp_path, "max", 1, 5)
    for value in (0.2, 0.9):
        course.train()
        course.train()
        course.judge(value)
    assert (tmp_path / "best").resolve().name == "step-4"
    course.store.set_aside_after(2)
    course.best.on_run_begin(2, course.rows[:1])
    assert (tmp_path / "best").resolve().name == "step-2"
    course.best.on_run_begin(0, [])
    assert not (tmp_path / "best").is_symlink() and not (tmp_path / "best.json").exists()


@pytest.mark.parametrize("value", [math.nan, None])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_metric_that_is_absent_or_no_number_is_told_at_the_end(tmp_path, value, restarts):
    course = Course(tmp_path, "max", 1, 1)
    course.train()
    course.train()
    if value is None:
        course.rows = [{"step": 2, "val/errors": 0.0}]
        course.best.on_validation(2, {"val/errors": 0.0})
    else:
        course.judge(value)
    if restarts:
        course.restart()
    summary = {"warnings": [], "status": "finished"}
    course.best.on_summary(summary, RunProgress(2, 2))
    told = f"keep_best: no validation had {METRIC} as a number: no checkpoint was kept for it"
    assert summary == {"warnings": [told], "status": "finished", "best": None}


def test_a_folder_that_another_run_owns_is_left_as_it_is(tmp_path):
    def taken():
        from roll.core.errors import Superseded

        raise Superseded("taken")

    course = Course(tmp_path, "max", 1, 1)
    for step in (2, 4):
        save(CheckpointStore(tmp_path), step)
    late = KeepBest(KeepBestConfig(), course.schedule, tmp_path, 1, SimpleNamespace(check=taken, token=1))
    late.on_validation(2, {"val/errors": 0.0, METRIC: 0.1})
    late.on_summary({"warnings": []}, RunProgress(2, 10))
    late.on_run_end({})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-2", "step-4"]


def test_the_best_checkpoint_in_words():
    values = {0: 0.9, 10: 0.5, 20: 0.75, 30: 0.25}
    best = best_of(values, METRIC, "max", 2, [10, 20, 30])
    assert told_best(best.plain()) == (
        "the best checkpoint is step 20 (val_correct/all/mean 0.750), and step 30, the last one, is 0.500 below; "
        "step 0 had 0.900, and no checkpoint"
    )
    lowest = best_of({10: 0.5, 20: 0.75}, "val/errors", "min", 1, [10, 20])
    assert told_best(lowest.plain()).endswith("step 10 (val/errors 0.500), and step 20, the last one, is 0.250 above")
    assert told_best(best_of({10: 1.0}, METRIC, "max", 1, [10]).plain()).startswith("the best checkpoint is the last validated")
    for broken in (None, 3, "x", {}, {"step": 1}, [], lowest.plain() | {"value": "x"}, lowest.plain() | {"better": 7}):
        assert told_best(broken) == ""


# -- early stopping -----------------------------------------------------------------------------------------------------


def stopping(**rule):
    found = EarlyStopping(EarlyStoppingConfig(**rule))
    found.on_run_begin(0, [])
    return found


def test_a_run_ends_after_patience_and_says_what_was_not_surpassed():
    found = stopping(patience=2)
    for step, value in ((0, 0.1), (10, 0.5), (20, 0.4)):
        found.on_validation(step, {METRIC: value})
        found.on_step(step + 1, {"critic/score/mean": 0.0})
    assert found._stops is None
    found.on_validation(30, {METRIC: math.nan})
    reason, status = found._stops
    assert status == "finished"
    assert reason == "val_correct/all/mean was not better than 0.500 (step 10) 2 times in a row (early_stopping)"


def test_patience_goes_on_after_a_restart_and_forgets_steps_that_are_taken_back():
    rows = [{"step": 0, METRIC: 0.5}, {"step": 5, "critic/score/mean": 1.0}, {"step": 10, METRIC: None}]
    found = stopping(patience=2)
    found.on_run_begin(10, rows)
    assert found._stops is None
    found.on_validation(20, {METRIC: 0.5})
    assert found._stops is not None
    found.on_run_begin(10, rows)
    assert found._stops is None
    found.on_run_begin(20, [*rows, {"step": 20, METRIC: 0.1}])
    assert found._stops is not None, "a run that had ended ends again"


def test_a_metric_that_never_came_is_told():
    found, summary = stopping(patience=1, metric="rewards/sums/elegance"), {"status": "finished", "warnings": []}
    found.on_step(1, {})
    found.on_summary(summary, RunProgress(1, 1))
    assert summary["warnings"] == ["early_stopping: no step and no validation had rewards/sums/elegance: nothing was watched"]


@pytest.mark.parametrize(("mode", "stops"), [("min", False), ("max", True)])
def test_the_better_end_is_the_one_that_was_given(mode, stops):
    found = stopping(patience=1, mode=mode, metric="actor/approxkl")
    for step, value in enumerate([3.0, 2.0, 1.0], 1):
        found.on_step(step, {"actor/approxkl": value})
    assert (found._stops is not None) == stops
