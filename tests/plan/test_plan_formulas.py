"""The formulas that `roll check` shows: every knob that changes a loss changes its formula, and no other does."""

from dataclasses import fields

import pytest
import torch

from roll.core.algorithms.pg_variants import get_policy_loss
from roll.core.algorithms.policy_loss import LossInputs
from roll.core.configs.derived import derive
from roll.core.configs.losses import DECOUPLED_BOUND, POLICY_LOSSES, PolicyLossArgs
from roll.core.configs.rlvr import RLVRConfig
from roll.plan.formulas import loss_formula
from roll.plan.rows_config import SFTConfig
from roll.plan.rows_formulas import rows_formula
from roll.plan.rules.loading import load_config

CHANGED = {
    "pg_clip_low": 0.05,
    "pg_clip_high": 0.07,
    "dual_clip_c": 1.05,
    "gspo_clip_low": 0.02,
    "gspo_clip_high": 0.03,
    "gmpo_clip_low": 0.1,
    "gmpo_clip_high": 0.1,
    "tis_lower_bound": 0.9,
    "tis_upper_bound": 1.4,
    "topr_positive_weight": 2.0,
    "topr_negative_weight": 3.0,
    "topr_ratio_level": "token",
    "cispo_epsilon_low": 0.01,
    "cispo_epsilon_high": 0.02,
    "cispo_use_unified_mask": True,
    "dppo_tv_delta_low": 0.01,
    "dppo_tv_delta_high": 0.01,
    "dppo_kl_delta_low": 1e-4,
    "dppo_kl_delta_high": 1e-4,
    "dppo_ratio_cap": 1.01,
    "asymre_baseline_shift": -0.3,
}


def made_up_batch() -> LossInputs:
    generator = torch.Generator().manual_seed(3)
    logprobs = -torch.rand(6, 5, generator=generator, dtype=torch.float64).mul(2) - 0.05
    anchor = logprobs - torch.randn(6, 5, generator=generator, dtype=torch.float64).mul(0.4)
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5, 2.0, -2.0], dtype=torch.float64)[:, None].expand(6, 5)
    return LossInputs(logprobs, anchor.clamp(max=-0.01), advantages, torch.ones(6, 5, dtype=torch.bool), advantages[:, 0])


def changed(name: str):
    value = CHANGED.get(name)
    return value if value is not None else getattr(PolicyLossArgs(), name) * 1.7


def formula(variant: str, args: PolicyLossArgs) -> str:
    return POLICY_LOSSES[variant].formula(args)


@pytest.mark.parametrize("variant", POLICY_LOSSES)
def test_the_formula_changes_exactly_where_the_loss_does(variant):
    loss = get_policy_loss(variant)
    before, _ = loss(made_up_batch(), PolicyLossArgs())
    for item in fields(PolicyLossArgs):
        args = PolicyLossArgs(**{item.name: changed(item.name)})
        after, _ = loss(made_up_batch(), args)
        # M2PO's knob acts on the whole optimiser batch, before the loss.
        acts = not torch.equal(before, after) or item.name == f"{variant}_threshold"
        assert (formula(variant, args) != formula(variant, PolicyLossArgs())) == acts, item.name


def told(**keys):
    config = load_config(
        RLVRConfig,
        {"response_length": 100, "actor_train": {"device_mapping": "0"}, "actor_infer": {"device_mapping": "0"}, **keys},
    )
    return loss_formula(config, derive(config))


def test_the_terms_around_the_policy_loss():
    plain = told()
    assert plain.total == "mean(L_t)"
    assert plain.kl == plain.entropy == plain.weight == plain.left_out == plain.masks == ""
    full = told(
        use_kl_loss=True,
        kl_loss_coef=0.02,
        kl_loss_type="k3+",
        entropy_loss_coef=0.001,
        loss_agg_mode="seq-mean-token-sum-norm",
        max_len_mask=True,
        difficulty_mask=True,
        difficulty_low_threshold=0.1,
        train_infer_correction={
            "is_weight": {"enabled": True, "weight_type": "geometric", "upper_bound": 1.5},
            "filters": [{"enabled": True, "agg_type": "sequence", "ratio_low": 0.9, "ratio_high": 1.1}, {"enabled": False}],
            "veto_threshold": 1e-4,
        },
        reference={"device_mapping": "0"},
    )
    assert full.total == "mean(w·L_t) + 0.02·mean(KL_t) − 0.001·mean(H_t)"
    assert full.kl == "KL_t = e^d − 1 − d, d = ℓ_r − ℓ (with the gradient of d²/2)"
    assert full.weight == "w = min(exp(mean_y log ρ), 1.5), ρ = exp(ℓ_p − ℓ_b)"
    assert full.left_out == "tokens unless 0.9 <= Π_y ρ <= 1.1; responses with any ρ_t < 0.0001"
    assert full.aggregation.endswith("/ 100")
    assert "0.1 < mean reward < 1" in full.masks


def test_the_order_of_the_advantage():
    line = told(
        adv_estimator="reinforce", norm_mean_type="batch", norm_std_type="batch", reward_clip=10, whiten_advantages=True,
        advantage_clip=2, gamma=0.9,
    ).advantage  # fmt: skip
    steps = ["R − mean over the batch", "std over the batch", "A = R", "±10", "discounted by 0.9 per token", "whitened", "±2"]
    positions = [line.index(step) for step in steps]
    assert positions == sorted(positions)


@pytest.mark.parametrize("variant", ["vanilla", "gpg"])
def test_a_loss_that_does_not_correct_says_so_where_samples_are_old(variant):
    assert told(actor_train={"device_mapping": "0", "pg_variant": variant}).ratio == "none"
    stale = told(actor_train={"device_mapping": "0", "pg_variant": variant}, async_generation_ratio=1)
    assert "not corrected" in stale.ratio


def test_the_default_weight_of_recomputed_log_probs_is_the_losss():
    from roll.core.algorithms.loss import DECOUPLED_WEIGHT

    assert (DECOUPLED_WEIGHT.level, DECOUPLED_WEIGHT.mode, DECOUPLED_WEIGHT.upper_bound) == ("token", "truncate", DECOUPLED_BOUND)
    assert told(old_logprobs="recompute").weight.startswith("w = min(ρ_t, 5), ρ = exp(ℓ_p − ℓ_b)")


def test_divergences_from_teachers_are_terms_of_their_own():
    taught = {"teachers": {"big": {"device_mapping": "0", "model_args": {"model_name_or_path": "big"}}}}
    advantage = told(**taught)
    assert "plus 1·(ℓ_T − ℓ_b) on each token" in advantage.advantage and advantage.divergence == ""
    found = {
        objective: told(**(taught | {"distillation": {"kd_objective": objective, "logits_topk": 8, **more}}))
        for objective, more in (("forward_kl", {}), ("reverse_kl", {}), ("js_divergence", {"kd_beta": 0.25}))
    }
    for each in found.values():
        assert each.total == "mean(L_t) + mean(1·D_t)" and "ℓ_T" not in each.advantage
        assert "8 most probable tokens" in each.divergence
    assert found["forward_kl"].divergence.startswith("D_t = Σ p·(log p − log π)")
    assert found["reverse_kl"].divergence.startswith("D_t = Σ π·(log π − log p)")
    jensen = "D_t = 0.25·Σ p·log(p/m) + 0.75·Σ π·log(π/m), m = 0.25·p + 0.75·π"
    assert found["js_divergence"].divergence.startswith(jensen)
    schedule = {"teachers": {"big": taught["teachers"]["big"] | {"opd_kl_coef": [1.0, 0.1]}}}
    scheduled = told(**(schedule | {"distillation": {"kd_objective": "forward_kl"}}))
    assert scheduled.total == "mean(L_t) + mean(c·D_t)" and scheduled.divergence.endswith("c = 1 to 0.1 (big)")
    teacher = {"teachers": {"big": taught["teachers"]["big"] | {"opd_kl_coef": 0.85}}}
    rows = rows_formula(load_config(SFTConfig, teacher | {"distillation": {"kd_objective": "forward_kl", "logits_topk": 8}}))
    assert (rows.total, rows.policy) == ("mean((1 − 0.85)·L_t) + mean(0.85·D_t)", "−ℓ")
    assert rows.divergence == found["forward_kl"].divergence
