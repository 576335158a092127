"""`keep_best` and `early_stopping` that could do nothing, or less than they say, are refused with a way out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.fields import all_range_problems
from roll.core.configs.problems import ConfigError
from roll.core.configs.rlvr import RLVRConfig
from roll.core.groups.schedule import StepSchedule
from roll.plan.rules.best_rules import best_problems
from roll.plan.rules.doubts import doubts
from roll.plan.rules.loading import load_config
from roll.plan.rules.validation import alarm_problems

VALIDATED = {"validation": {"data_args": {"file_name": "v.jsonl"}, "generating_args": {"num_return_sequences": 4}}}
BASE = {"rewards": {"math": {"worker_cls": "my.Math", "tag_included": ["sums", "odd"]}}, "save_steps": 10, **VALIDATED}
AGENTIC = {"custom_envs": {"Lake": {"env_type": "frozen_lake"}}, "save_steps": 10}


def problems(cls=RLVRConfig, /, **changes):
    config = load_config(cls, {**(BASE if cls is RLVRConfig else AGENTIC), **changes})
    return [(problem.key, str(problem)) for problem in best_problems(config)]


OF_VALIDATIONS = """
val_correct/all/mean val_correct/sums/mean val/score/mean val/errors eval/validation/all/avg@4 eval/validation/all/pass@2
eval/validation/all/pass@4/low eval/validation/tag/odd/avg@4/high
"""


@pytest.mark.parametrize("metric", OF_VALIDATIONS.split())
def test_metrics_of_validations_are_accepted(metric):
    assert problems(keep_best={"metric": metric}, early_stopping={"metric": metric, "patience": 2}) == []


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        ("val_correct/soms/mean", "did you mean val_correct/sums/mean?"),
        ("eval/validation/all/pass@8", "no validation of this run will have it"),
        ("eval/aime/all/avg@4", "did you mean eval/validation/all/avg@4?"),
        ("actor/ess", "is a metric of training"),
        ("val/*", "no validation of this run will have it"),
        ("", "no validation of this run will have it"),
    ],
)
def test_other_metrics_are_refused(metric, says):
    ((key, text),) = problems(keep_best={"metric": metric})
    assert key == "keep_best.metric" and says in text


@pytest.mark.parametrize("metric", ["val_correct/soms/mean", "eval/aime/all/avg@4", "val/*", "actor/esss", "time/*_s"])
def test_neither_patience_nor_an_alarm_waits_for_what_never_comes(metric):
    ((key, text),) = problems(early_stopping={"metric": metric, "patience": 2})
    assert key == "early_stopping.metric" and "will have it" in text
    config = load_config(RLVRConfig, {**BASE, "alarms": [{"metric": metric, "above": 1.0}]})
    assert [problem.key for problem in alarm_problems(config)] == ["alarms[0].metric"]


def test_without_a_validation_set_there_is_nothing_best():
    ((key, text),) = problems(keep_best={}, validation=None)
    assert key == "keep_best.metric" and "no validation set" in text and "validation: {data_args" in text
    ((key, text),) = problems(AgenticConfig, keep_best={})
    assert key == "keep_best.metric" and "val_env_manager" in text
    ((key, text),) = problems(early_stopping={"patience": 2}, validation=None)
    assert key == "early_stopping.metric" and "needs a validation set" in text
    assert problems(early_stopping={"patience": 2, "metric": "critic/score/mean"}, validation=None) == []


def test_an_evaluation_may_have_the_file_of_a_run():
    assert problems(keep_best={"metric": "x"}, early_stopping={"metric": "x", "patience": 1}, mode="bench") == []


def test_episodes_have_their_own():
    manager = {"tags": ["Lake"], "num_env_groups": 2, "group_size": 2}
    for metric in ("val/env/Lake/success", "eval/validation/all/avg@2", "val_correct/Lake/mean"):
        assert problems(AgenticConfig, keep_best={"metric": metric}, val_env_manager=manager) == []
    assert problems(AgenticConfig, keep_best={"metric": "eval/validation/all/avg@1"}, val_env_manager=manager) != []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"keep_best": {"count": 0}}, "keep_best.count = 0"),
        ({"keep_best": {"mode": "best"}}, "must be one of max, min"),
        ({"keep_best": True}, "keep_best = True"),
        ({"keep_best": {"metrc": "x"}}, "did you mean metric?"),
        ({"early_stopping": {}}, "early_stopping.patience"),
        ({"early_stopping": {"patience": 0}}, "early_stopping.patience = 0: must be >= 1"),
        ({"early_stopping": {"patience": 1, "least": -0.1}}, "early_stopping.least = -0.1"),
        ({"early_stopping": {"patience": 1, "least": float("nan")}}, "early_stopping.least"),
    ],
)
def test_values_out_of_range_are_refused_by_key(given, says):
    with pytest.raises(ConfigError) as refused:
        config = load_config(RLVRConfig, {**BASE, **given})
        raise ConfigError([*all_range_problems(config)])
    assert says in str(refused.value)


@given(st.integers(1, 12), st.integers(0, 12), st.integers(1, 5), st.integers(1, 60))
def test_every_step_that_may_be_best_leaves_a_checkpoint_or_the_fix_is_one(every, save, push, last):
    """By the schedule itself; step 0 has none, and the last always."""
    changes = {"eval_steps": every, "save_steps": save, "weight_push_interval": push, "max_steps": last}
    schedule = StepSchedule(last_step=last, push_every=push, validate_every=every, save_every=save)
    validated = [step for step in range(1, last + 1) if schedule.publishes(step) and schedule.validates(step)]
    found = problems(keep_best={}, **changes)
    assert bool(found) == (not all(map(schedule.saves, validated)))
    for key, text in found:
        assert key == "save_steps"
        fix = int(text.rpartition("fix: ")[2].partition(",")[0])
        assert problems(keep_best={}, **changes | {"save_steps": fix}) == []


LONG = {**BASE, "response_length": 8, "max_steps": 30, "actor_train": {"device_mapping": "0"}}


def test_patience_that_never_ends_a_run_is_doubted():
    config = load_config(RLVRConfig, {**LONG, "early_stopping": {"patience": 4}})
    (note,) = [str(note) for note in doubts(config) if "early_stopping" in str(note)]
    assert "has 4 validations" in note
    shorter = load_config(RLVRConfig, {**LONG, "early_stopping": {"patience": 3}})
    assert not [note for note in doubts(shorter) if "early_stopping" in str(note)]
