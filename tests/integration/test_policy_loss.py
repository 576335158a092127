"""Policy losses and corrections in whole runs: every built-in one, and a user's own from a file of theirs."""

import math

import pytest

from roll.core.configs.losses import POLICY_LOSSES
from roll.core.configs.problems import ConfigError

OWN_LOSS = '''
from roll.core.algorithms.policy_loss import policy_loss


def half_weight(inputs, args):
    """REINFORCE that trusts tokens the policy has come to like more only half."""
    risen = inputs.ratio.detach() > 1
    weight = 1 - 0.5 * risen.to(inputs.logprobs.dtype)
    return -weight * inputs.advantages * inputs.logprobs, {"risen_share": inputs.count(risen)}


@policy_loss(needs_proximal=True)
def greedy(inputs, args):
    return -inputs.advantages * inputs.ratio, {}


def scalar(inputs, args):
    return -(inputs.advantages * inputs.logprobs).mean(), {}
'''


@pytest.fixture
def own_losses(tmp_path, monkeypatch):
    (tmp_path / "my_pg_losses.py").write_text(OWN_LOSS)
    monkeypatch.syspath_prepend(tmp_path)
    return "my_pg_losses"


def finite(run):
    return all(math.isfinite(v) for row in run.steps() for v in row.values() if isinstance(v, int | float))


@pytest.mark.parametrize("variant", POLICY_LOSSES)
def test_every_variant_trains_asynchronously(lab, make_config, variant):
    run = lab.run(make_config({"actor_train.pg_variant": variant}, async_generation_ratio=1))
    assert finite(run)
    assert all(row["actor_train/grad_norm"] > 0 for row in run.steps())
    assert all(("actor/is_weight_mean" in row) == (variant == "decoupled_ppo") for row in run.steps())
    assert all(row["actor/train_infer_ess_token"] > 0 for row in run.steps())


def test_the_choice_of_old_log_probs_is_said_once(lab, make_config, capsys):
    for variant in ("ppo", "decoupled_ppo"):
        lab.run(make_config({"actor_train.pg_variant": variant}, exp_name=variant))
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("old log-probs")]
    assert shown == [
        "old log-probs: the sampler's (pg_variant ppo takes its ratio to the sampler's)",
        "old log-probs: recomputed at the start of each step (pg_variant decoupled_ppo needs them)",
    ]


def test_a_reference_that_nothing_uses_is_not_started(lab, make_config, capsys):
    run = lab.run(make_config({"reference.device_mapping": "0"}))
    assert "reference: not started" in capsys.readouterr().out
    assert all("actor/kl_loss" not in row for row in run.steps())


def test_corrections_act_in_a_run(lab, make_config):
    changes = {
        "train_infer_correction.is_weight": {"enabled": True, "weight_type": "geometric", "upper_bound": 2.0},
        "train_infer_correction.filters": [{"enabled": True, "ratio_low": 0.5, "ratio_high": 2.0}],
        "train_infer_correction.veto_threshold": 1e-4,
    }
    run = lab.run(make_config(changes, async_generation_ratio=1))
    assert finite(run)
    for row in run.steps():
        assert 0 < row["actor/is_weight_max"] <= 2
        assert 0 < row["actor/train_infer_final_mask_mean"] <= 1


def test_a_users_loss_from_their_own_file_trains(lab, make_config, own_losses):
    run = lab.run(make_config({"actor_train.pg_variant": f"{own_losses}.half_weight"}))
    assert finite(run)
    assert all(0 <= row["actor/risen_share"] <= 1 for row in run.steps())
    assert all(row["actor_train/grad_norm"] > 0 for row in run.steps())


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("my_pg_losses.no_such", {}, "no_such"),
        ("no_such_module.loss", {}, "no_such_module"),
        ("my_pg_losses.scalar", {}, "per-token loss"),
        ("my_pg_losses.greedy", {}, "old_logprobs: recompute"),
    ],
)
def test_a_loss_that_cannot_work_is_refused_before_any_worker_starts(lab, make_config, own_losses, name, changes, message):
    with pytest.raises(ConfigError, match="pg_variant") as error:
        lab.run(make_config({"actor_train.pg_variant": name, **changes}))
    assert message in str(error.value)


def test_a_users_loss_may_ask_for_proximal_log_probs(lab, make_config, own_losses):
    changes = {"actor_train.pg_variant": f"{own_losses}.greedy", "old_logprobs": "recompute"}
    assert all("actor/is_weight_mean" in row for row in lab.run(make_config(changes)).steps())
