"""What a configuration says of policy losses, of the train/infer correction and of old log-probs."""

from dataclasses import fields

import pytest

from roll.core.algorithms.correction import Correction, Filter, ImportanceWeight
from roll.core.algorithms.pg_variants import get_policy_loss
from roll.core.algorithms.policy_loss import policy_losses, traits_of
from roll.core.configs.derived import decisions, derive
from roll.core.configs.losses import POLICY_LOSSES, PolicyLossArgs
from roll.core.configs.plain import to_mapping
from roll.core.configs.problems import ConfigError
from roll.core.configs.rlvr import RLVRConfig
from roll.core.configs.worker import ActorTrainConfig
from roll.core.pipeline.roles import loss_spec
from roll.plan.rules.loading import load_config
from roll.plan.rules.validation import check_config

get_policy_loss()
OF_PPO = {"pg_clip_low", "pg_clip_high", "dual_clip_c"}
"""Knobs that stand at the top level, under ROLL's names."""


def configure(variant="ppo", knobs=None, **top_level):
    return load_config(
        RLVRConfig,
        {
            "pretrain": "model",
            "rollout_batch_size": 4,
            "num_return_sequences_in_group": 4,
            "prompt_length": 8,
            "response_length": 8,
            "actor_train": {
                "device_mapping": "0",
                "data_args": {"file_name": "train.jsonl"},
                "pg_variant": variant,
                "training_args": {"per_device_train_batch_size": 16},
                **(knobs or {}),
            },
            "actor_infer": {"device_mapping": "1"},
            "rewards": {"math": {"worker_cls": "my.Math"}},
            **top_level,
        },
    )


def problems(*args, **changes):
    return {problem.key: problem for problem in check_config(configure(*args, **changes), 2)}


def weight(**changes):
    return {"train_infer_correction": {"is_weight": {"enabled": True, **changes}}}


def filters(*rules):
    return {"train_infer_correction": {"filters": list(rules)}}


def test_every_loss_of_the_table_has_a_function_with_its_traits():
    assert sorted(POLICY_LOSSES) == policy_losses.names
    for name, entry in POLICY_LOSSES.items():
        traits = traits_of(get_policy_loss(name))
        assert (traits.needs_proximal, traits.anchor) == (entry.needs_proximal, entry.anchor), name


@pytest.mark.parametrize("name", [item.name for item in fields(PolicyLossArgs) if item.name not in OF_PPO])
def test_every_knob_of_a_variant_is_a_key_with_the_same_default_and_reaches_the_loss(name):
    default = getattr(PolicyLossArgs(), name)
    assert getattr(ActorTrainConfig(), name) == default
    value = {str: "token", bool: True}.get(type(default)) or (default or 0.5) * 0.9
    config = configure(knobs={name: value})
    assert getattr(loss_spec(config, derive(config)).args, name) == value


def test_ppos_knobs_reach_the_loss():
    config = configure(pg_clip=[0.1, 0.3], dual_clip_c=3.0)
    args = loss_spec(config, derive(config)).args
    assert (args.pg_clip_low, args.pg_clip_high, args.dual_clip_c) == (0.1, 0.3, 3.0)


@pytest.mark.parametrize("variant", [*POLICY_LOSSES, "my_module.my_loss"])
def test_names_and_dotted_paths_are_accepted(variant):
    assert problems(variant) == {}


@pytest.mark.parametrize(
    ("variant", "fix"), [("cipso", "did you mean cispo?"), ("decoupled-ppo", "did you mean decoupled_ppo?"), ("??", "one of ")]
)
def test_a_misspelt_variant_is_refused_with_the_nearest_name(variant, fix):
    problem = problems(variant)["actor_train.pg_variant"]
    assert problem.message == "is not a policy loss"
    assert problem.fix.startswith(fix)


FP8, CACHE_IN_FP8 = (
    {"actor_infer": {"device_mapping": "1", "strategy_args": {"strategy_name": "vllm", "strategy_config": {key: "fp8"}}}}
    for key in ("quantization", "kv_cache_dtype")
)


@pytest.mark.parametrize(
    ("variant", "changes", "recomputed", "reason"),
    [
        ("ppo", {}, False, "pg_variant ppo takes its ratio to the sampler's"),
        ("vanilla", {}, False, "pg_variant vanilla takes no ratio"),
        ("decoupled_ppo", {}, True, "pg_variant decoupled_ppo needs them"),
        ("m2po", {}, True, "pg_variant m2po needs them"),
        ("ppo", weight(), True, "is_weight weighs them"),
        ("my_module.my_loss", weight(), True, "is_weight weighs them"),
        ("vanilla", weight(), False, "pg_variant vanilla takes no ratio"),
        ("ppo", {"train_infer_correction": {"veto_threshold": 1e-4}}, False, "pg_variant ppo takes its ratio"),
        ("ppo", {"old_logprobs": "recompute"}, True, "old_logprobs: recompute"),
        ("ppo", {"old_logprobs": "bypass"}, False, "old_logprobs: bypass"),
        ("ppo", FP8, True, "vllm samples in FP8"),
        ("cispo", CACHE_IN_FP8, True, "vllm samples in FP8"),
        ("vanilla", FP8, False, "pg_variant vanilla takes no ratio"),
        ("ppo", {"old_logprobs": "bypass", **FP8}, False, "old_logprobs: bypass"),
        ("vanilla", {"old_logprobs": "bypass", **weight()}, False, "old_logprobs: bypass"),
    ],
)
def test_old_log_probs_are_recomputed_only_if_something_needs_them(variant, changes, recomputed, reason):
    assert problems(variant, **changes) == {}
    derived = derive(configure(variant, **changes))
    assert derived.recompute_old_logprobs is recomputed
    assert derived.old_logprobs_reason.startswith(reason)


@pytest.mark.parametrize(("variant", "changes", "told"), [("vanilla", FP8, True), ("ppo", FP8, False), ("vanilla", {}, False)])
def test_what_weighs_no_difference_of_fp8_is_told(variant, changes, told):
    config = configure(variant, **changes)
    assert any("in FP8 are not weighted" in line for line in decisions(config, derive(config))) is told


@pytest.mark.parametrize(
    ("variant", "changes", "key", "message"),
    [
        ("decoupled_ppo", {"old_logprobs": "bypass"}, "old_logprobs", "needs the log-probs"),
        ("m2po", {"old_logprobs": "bypass"}, "old_logprobs", "needs the log-probs"),
        ("tis", {"old_logprobs": "bypass", **weight()}, "old_logprobs", "twice"),
        ("m2po", weight(), "train_infer_correction.is_weight.enabled", "twice"),
        ("ppo", weight(mode="mask", lower_bound=1.2), "train_infer_correction.is_weight.lower_bound", "1.2 >= upper_bound 1.2"),
        (
            "ppo",
            filters({"enabled": True, "ratio_enabled": False}),
            "train_infer_correction.filters[0].enabled",
            "filters by nothing",
        ),
        ("ppo", filters({}, {"ratio_low": 2}), "train_infer_correction.filters[1].ratio_low", "2 >= ratio_high 1.2"),
        ("ppo", filters({"diff_low": 0.5}), "train_infer_correction.filters[0].diff_low", "0.5 >= diff_high 0.2"),
    ],
)
def test_what_contradicts_itself_is_refused(variant, changes, key, message):
    found = problems(variant, **changes)
    assert list(found) == [key]
    assert message in found[key].message


def test_rolls_correction_keys_reach_the_loss():
    rules = [
        {"enabled": True, "agg_type": "geometric", "ratio_low": 0.9, "ratio_high": 1.1},
        {"enabled": True, "ratio_enabled": False, "diff_enabled": True},
        {"enabled": False},
    ]
    wish = {
        "is_weight": {"enabled": True, "weight_type": "sequence", "upper_bound": 2.0},
        "filters": rules,
        "veto_threshold": 1e-4,
    }
    config = configure(train_infer_correction=wish)
    assert loss_spec(config, derive(config)).correction == Correction(
        weight=ImportanceWeight(level="sequence", upper_bound=2.0),
        filters=(Filter(level="geometric", ratio=(0.9, 1.1)), Filter(ratio=None, difference=(-0.2, 0.2))),
        veto_threshold=1e-4,
    )
    assert load_config(RLVRConfig, to_mapping(config)) == config


def test_nothing_is_corrected_by_default():
    config = configure()
    assert loss_spec(config, derive(config)).correction == Correction()


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        (weight(detach=True), "train_infer_correction.is_weight.detach"),
        (filters({}, {"enable": True}), "train_infer_correction.filters[1].enable"),
        (filters({"ratio_low": -1}), "train_infer_correction.filters[0].ratio_low"),
        (filters({"agg_type": "sentence"}), "train_infer_correction.filters[0].agg_type"),
        ({"force_disable_old_logprobs_recompute": True}, "force_disable_old_logprobs_recompute"),
    ],
)
def test_keys_and_ranges_of_the_correction_are_checked(changes, key):
    with pytest.raises(ConfigError) as error:
        configure(**changes)
    assert [problem.key for problem in error.value.problems] == [key]
    assert error.value.problems[0].fix or "must be" in error.value.problems[0].message


def test_ranges_in_a_list_of_blocks_built_in_python_are_checked():
    config = configure(**filters({}))
    object.__setattr__(config.train_infer_correction.filters[0], "ratio_low", -1.0)
    assert "train_infer_correction.filters[0].ratio_low" in {problem.key for problem in check_config(config, 2)}
