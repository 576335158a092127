"""Alarms that could never be given are refused, with a way out."""

import pytest
import torch

from roll.core.algorithms.pg_variants import get_policy_loss
from roll.core.algorithms.policy_loss import LossInputs
from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.losses import POLICY_LOSSES, PolicyLossArgs
from roll.core.configs.rlvr import RLVRConfig
from roll.plan.rules.loading import load_config
from roll.plan.rules.validation import alarm_problems

BASE = {"rewards": {"math": {"worker_cls": "my.Math"}}}


def problems(metric, cls=RLVRConfig, /, **changes):
    config = load_config(cls, {**BASE, "alarms": [{"metric": metric, "above": 1.0}], **changes} if cls is RLVRConfig else changes)
    return [(problem.key, str(problem)) for problem in alarm_problems(config)]


OF_A_RUN = """
actor/ess staleness/mean staleness/engines_behind time/step_s actor/clipfrac actor/engine_mismatch/3 rewards/math/mean
rewards/math/length memory/driver_rss_mb actor_train/grad_norm
"""


@pytest.mark.parametrize("metric", OF_A_RUN.split())
def test_metrics_of_the_run_are_accepted(metric):
    assert problems(metric) == []


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        ("actor/esss", "did you mean actor/ess?"),
        ("loss", "a name from metrics.jsonl"),
        ("actor/kl_loss", "needs use_kl_loss"),
        ("critic/kl", "needs add_token_level_kl"),
        ("critic/value_loss", "needs adv_estimator gae"),
        ("actor/is_weight_mean", "needs train_infer_correction"),
        ("val_correct/all/mean", "needs a validation set"),
        ("env/Lake/success", "needs an agentic run"),
        ("actor/sapo_gate", "pg_variant: sapo"),
        ("rewards/code/mean", "did you mean rewards/"),
        ("staleness/math/mean", "did you mean staleness/mean?"),
        ("staleness/histogram", "no step of this run"),
    ],
)
def test_metrics_that_no_step_will_have_are_refused_with_what_they_need(metric, says):
    ((key, text),) = problems(metric)
    assert key == "alarms[0].metric" and says in text


def test_what_a_setting_brings_is_accepted_with_it():
    assert problems("actor/sapo_gate", actor_train={"pg_variant": "sapo"}) == []
    assert problems("actor/my_own", actor_train={"pg_variant": "my.module.loss"}) == []
    assert problems("actor/is_weight_mean", old_logprobs="recompute") == []
    assert problems("val/errors", validation={"data_args": {"file_name": "v.jsonl"}}) == []
    two = {"math": {"worker_cls": "my.Math"}, "code": {"worker_cls": "my.Code"}}
    assert problems("staleness/code/mean", rewards=two) == []
    agentic = {"custom_envs": {"Lake": {"env_type": "frozen_lake"}}, "alarms": [{"metric": "env/Lake/success", "below": 0.1}]}
    assert problems("", AgenticConfig, **agentic) == []


@pytest.mark.parametrize("flow", [{"callbacks": ["my.Notes"]}, {"stages": [{"name": "x", "worker": "my.f", "after": "reward"}]}])
def test_what_own_code_adds_is_accepted_and_a_misspelt_metric_of_the_run_is_not(flow):
    assert problems("mine/rolled_out_length", flow=flow) == []
    assert problems("accuracy", flow=flow) == []
    for wrong in ("actor/esss", "acter/ess", "rewards/code/mean", "critic/kl"):
        assert problems(wrong, flow=flow) != []


@pytest.mark.parametrize(
    ("given", "key", "says"), [({}, "alarms[0]", "no range"), ({"above": 1.0, "below": 1.0}, "alarms[0].below", "less than 1")]
)
def test_a_range_that_cannot_be_left_or_never_be_kept_is_refused(given, key, says):
    config = load_config(RLVRConfig, {**BASE, "alarms": [{"metric": "actor/ess", **given}]})
    ((problem),) = alarm_problems(config)
    assert problem.key == key and says in str(problem)


@pytest.mark.parametrize("name", sorted(POLICY_LOSSES))
def test_every_loss_has_the_metrics_that_its_entry_names(name):
    ones = torch.ones(2, 3)
    inputs = LossInputs(-ones, -ones, ones, ones.bool(), torch.ones(2))
    _, sums = get_policy_loss(name)(inputs, PolicyLossArgs(dual_clip_c=3.0, cispo_use_unified_mask=True))
    assert sums.keys() == set(POLICY_LOSSES[name].metrics)
