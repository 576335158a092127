"""Sentences that follow from the metrics of several steps: each as long as it has to hold, and as often as it is to be said."""

import math

import pytest

from roll.core.record.run_progress import RunProgress
from roll.reports.table import Row, Table
from roll.reports.warnings import (
    LEARNING,
    Warnings,
    mismatch_advice,
    mismatched_engine,
    unreachable_ess,
    vanishing_gradient,
)


def texts(table, metrics):
    return [text for _, _, text in table.judge(metrics)]


@pytest.mark.parametrize(
    ("said", "patience", "steps"),
    [
        ("once", 1, [1]),
        ("again", 1, [1, 5]),
        ("always", 1, [1, 2, 3, 5, 6]),
        ("once", 2, [2]),
        ("again", 2, [2, 6]),
        ("always", 2, [2, 3, 6]),
    ],
)
def test_a_row_is_said_as_often_as_it_says(said, patience, steps):
    table = Table([Row("a", lambda value, _: value > 0, "{name} is {value:g}", "lower it", patience, said)])
    values = [1.0, 1.0, 1.0, 0.0, 1.0, None, 1.0]
    found = [texts(table, {} if value is None else {"a": value}) for value in values]
    there = [lines for lines, value in zip(found, values, strict=True) if value is not None]
    assert found[5] == [] and [step for step, lines in enumerate(there, 1) if lines] == steps
    assert all(lines in ([], ["a is 1; fix: lower it"]) for lines in found)


def test_the_names_of_one_row_count_by_themselves():
    table = Table([Row("a/*", lambda value, _: value > 0, lambda name, *_: name, patience=2, said="again")])
    assert [texts(table, row) for row in ({"a/0": 1}, {"a/0": 0, "a/1": 1}, {"a/0": 1, "a/1": 1}, {"a/0": 1}, {"b": 1})] == [
        [], [], ["a/1"], ["a/0"], [],
    ]  # fmt: skip


def test_an_engine_that_samples_from_other_weights_is_named_at_each_step():
    table = Table([mismatched_engine(0.1)])
    for _ in range(2):
        (said,) = texts(table, {"actor/engine_mismatch/0": 0.01, "actor/engine_mismatch/1": 0.2, "actor/engine_mismatch_k3": 1.0})
        assert said.startswith("the log-probs of actor_infer engine 1 differ from the trainer's by 0.2 nats a token")
    assert len(texts(table, {"actor/engine_mismatch/0": math.nan})) == 1


TAUGHT = {"actor_train/grad_norm": 0.1, "critic/advantages/max": 1.0, "critic/advantages/min": -1.0}


def told(steps):
    """What is new with each step, and what summary.json has."""
    warned, new = Warnings(LEARNING, ["of the start"]), []
    for number, metrics in enumerate(steps, 1):
        before = len(warned.kept)
        warned.on_step(number, metrics)
        new.append(warned.kept[before:])
    summary = {}
    for _ in range(2):
        warned.on_summary(summary, RunProgress(len(steps), len(steps)))
    assert summary["warnings"] == ["of the start", *(line for lines in new for line in lines)]
    return new, [line for lines in new for line in lines]


def test_three_steps_without_signal_are_warned_of_once():
    nothing = {"actor_train/grad_norm": 0.0, "critic/advantages/max": 0.0, "critic/advantages/min": 0.0}
    new, warned = told([nothing] * 8 + [TAUGHT] + [nothing] * 8)
    assert [len(warnings) for warnings in new] == [0, 0, 2, *[0] * 14]
    assert any("all advantages are 0" in warning for warning in warned)
    assert any("norm 0" in warning for warning in warned)


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_gradients_that_are_not_finite_are_warned_of(norm):
    lost = TAUGHT | {"actor_train/grad_norm": norm}
    (text,) = told([lost] * 5)[1]
    assert text.startswith("step 3: 3 steps in a row had a gradient that is not finite") and "skipped_steps" in text
    assert told([lost, lost, TAUGHT] * 3)[1] == []


def test_steps_that_teach_between_them_are_no_reason_to_warn():
    nothing = {"actor_train/grad_norm": 0.0}
    assert told([nothing, nothing, TAUGHT] * 5)[1] == []


def test_metrics_that_are_not_there_say_nothing():
    assert told([{}] * 9)[1] == []


def test_long_responses_that_fade_are_told_once_with_the_fix():
    fading = Table([vanishing_gradient("topr", sign, "actor_train.topr_ratio_level: token") for sign in ("good", "bad")])
    faded = {"actor/gradient_left/bad_1k": 0.8, "actor/gradient_left/bad_8k": 0.3, "actor/gradient_left/good_8k": 1.0}
    (said,) = texts(fading, faded)
    assert said == (
        "pg_variant topr leaves responses with A < 0 of more than 1,024 tokens 30% of their gradient "
        "(actor/gradient_left/bad_8k), so they are hardly learned from; fix: actor_train.topr_ratio_level: token"
    )
    assert texts(fading, faded) == []
    (said,) = texts(fading, faded | {"actor/gradient_left/good_32k": 0.01})
    assert "with A > 0 of more than 8,192 tokens 1%" in said


def test_what_short_responses_lose_too_is_not_a_matter_of_length():
    """A clip that leaves out much of stale samples does so at every length."""

    def said(metrics):
        return texts(Table([vanishing_gradient("ppo", "bad", "")]), metrics)

    assert said({"actor/gradient_left/bad_1k": 0.5, "actor/gradient_left/bad_8k": 0.4}) == said({}) == []
    assert said({"actor/gradient_left/bad_1k": 0.1}) == []
    assert len(said({"actor/gradient_left/bad_32k": 0.4})) == 1


FAR = {"actor/train_infer_ess_token": 0.5, "actor/train_infer_k3": 0.1}


def test_a_target_that_no_pipeline_is_shallow_enough_for_is_told_once():
    def said(target, *steps):
        table = Table([unreachable_ess(target)])
        rows = [{"actor/train_infer_ess_sequence": ess, "staleness/max": int(not fresh)} for ess, fresh in steps]
        return [text for row in rows for text in texts(table, row)]

    numerics = (0.6, True)
    assert said(0.5, *[numerics] * 9) == []
    (sentence,) = said(0.9, *[numerics] * 9)
    assert "0.60" in sentence and "target_ess 0.9" in sentence
    stale, reached = (0.6, False), (0.95, True)
    assert said(0.9, *[stale] * 9) == [], "a shallower pipeline may help"
    for between in (stale, reached):
        assert said(0.9, numerics, numerics, between, numerics, numerics) == []


def proposals(ratio, weighted, *rows, bounded=False):
    table = Table([mismatch_advice(ratio, weighted, bounded)])
    return [said for row in rows for said in texts(table, row)]


def test_a_distance_that_lasts_is_told_once_with_what_follows_from_where_it_comes():
    numerics, older = FAR | {"actor/engine_mismatch_k3": 0.09}, FAR | {"actor/engine_mismatch_k3": 0.01}
    near = {"actor/train_infer_ess_token": 0.99}
    assert proposals(2, False, FAR, FAR, near, FAR, FAR) == []
    (said,) = proposals(2, False, *[numerics] * 9)
    assert "50% of the tokens" in said and "90%" in said and "is_weight: {enabled: true" in said and "dtype" in said
    assert "is_weight" not in proposals(2, True, *[numerics] * 3)[0], "it is on already"
    (said,) = proposals(2, False, *[older] * 3)
    assert "10% of it is numerics" in said and said.endswith("staleness_tuning.depth: true, or an async_generation_ratio below 2")
    assert "a larger staleness_tuning.target_ess" in proposals(2, False, *[older] * 3, bounded=True)[0]
    assert len(proposals(2, False, *[older] * 3, near, *[older] * 3)) == 1
    assert "no token was fresh" in proposals(2, False, *[FAR] * 3)[0]
    assert "dtype" in proposals(0, False, *[FAR] * 3)[0], "nothing is older"
