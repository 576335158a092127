"""The table of ROLL's keys: that it is complete and alive, and what each kind of rule does to a mapping."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_surface import ROLLS_KEYS, keys

from roll.compat.roll import translation
from roll.compat.roll.report import DEFAULTS, other_defaults
from roll.compat.roll.rule import DROP, ROLES, KeyRule
from roll.compat.roll.translation import RULES, has_field, translate
from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.arguments import STRATEGY_CONFIGS
from roll.core.configs.problems import ConfigError
from roll.core.configs.rlvr import RLVRConfig
from roll.plan.load_report import LoadReport
from roll.plan.rules.loading import load_config
from roll.prepare.compose import load

PIPELINES = (RLVRConfig, AgenticConfig)
STRATEGY_BLOCK = "strategy_args.strategy_config"


def in_every_role(path):
    return [tuple(path.replace("<role>", role).split(".")) for role in (ROLES if "<role>" in path else ("",))]


def is_field(cls, path):
    """Options of a back end are fields of one back end or another."""
    if ".".join(path[1:3]) == STRATEGY_BLOCK and len(path) == 4:
        return any(has_field(options, path[3:]) for options in STRATEGY_CONFIGS.values())
    return has_field(cls, path)


def test_every_key_of_roll_is_a_field_or_has_a_rule():
    def told(path):
        return any(rule.matches(path[:length]) for length in range(1, len(path) + 1) for rule in RULES)

    missing = [
        ".".join(path)
        for key in keys()
        for path in in_every_role(key)
        if not any(is_field(cls, path) for cls in PIPELINES) and not told(path)
    ]
    assert missing == []


def test_every_rule_for_an_absent_key_is_about_one_that_is_absent():
    """A rule for a key that both pipelines (in all roles) have by now does nothing: remove it."""
    dead = [
        rule.path
        for rule in RULES
        if rule.for_absent
        and STRATEGY_BLOCK not in rule.path
        and all(has_field(cls, path) for cls in PIPELINES for path in in_every_role(rule.path))
    ]
    assert dead == []


def test_every_rule_for_values_is_about_a_field():
    lost = [
        rule.path
        for rule in RULES
        if not rule.for_absent
        and rule.path not in ROLLS_KEYS.split()
        and not any(has_field(cls, path) for cls in PIPELINES for path in in_every_role(rule.path))
        and not any(other.path == rule.path and other.for_absent for other in RULES)
    ]
    assert lost == []


def rlvr(mapping):
    return translate(mapping, RLVRConfig)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"use_additional_prompts": True}, {"redundant_groups": 16}),
        ({"is_use_additional_prompts": True, "max_additional_running_prompts": 3}, {"redundant_groups": 3}),
        ({"is_use_additional_prompts": False, "max_additional_running_prompts": 3}, {}),
        ({"max_additional_running_prompts": 3}, {}),
        ({"use_pg_clip_range": True, "pg_clip_high": 0.28}, {"pg_clip": [0.2, 0.28]}),
        ({"pg_clip": 0.3, "use_pg_clip_range": True, "pg_clip_low": 0.1}, {"pg_clip": [0.1, 0.2]}),
        ({"pg_clip": 0.3, "use_pg_clip_range": False, "pg_clip_low": 0.2}, {"pg_clip": 0.3}),
        ({"pg_clip": [0.1, 0.4]}, {"pg_clip": [0.1, 0.4]}),
        ({"dual_clip_loss": True}, {"dual_clip_c": 3.0}),
        ({"dual_clip_loss": True, "dual_clip_c": 2.0}, {"dual_clip_c": 2.0}),
        ({"dual_clip_loss": False, "dual_clip_c": 2.0}, {}),
        ({"dual_clip_c": 2.0}, {"dual_clip_c": 2.0}),
        ({"enable_old_logprobs_recompute": True}, {"old_logprobs": "recompute"}),
        ({"enable_old_logprobs_recompute": False}, {}),
        ({"kl_penalty": "mse", "kl_loss_type": "low_var_kl+"}, {"kl_penalty": "k2", "kl_loss_type": "k3+"}),
        ({"kl_penalty": "kl", "kl_loss_type": "kl"}, {"kl_penalty": "k1", "kl_loss_type": "k1"}),
        ({"track_with": "ml_tracker"}, {"track_with": "none"}),
        ({"router_args": {"router_name": None, "max_running_requests": 64}}, {"max_running_requests": 64}),
        ({"track_with": "stdout"}, {"track_with": "none"}),
        ({"eval_steps": 0, "validation": {"data_args": {"file_name": "v"}}, "val_batch_size": 3}, {}),
        ({"reward_norm": "group", "reward_shift": False}, {"norm_mean_type": "group", "norm_std_type": "group"}),
        ({"reward_norm": "None", "reward_shift": False}, {"norm_mean_type": None, "norm_std_type": None}),
        ({"reward_norm": "batch", "reward_shift": True}, {"norm_mean_type": "batch", "norm_std_type": None}),
        ({"reward_norm": "batch", "reward_scale": True}, {"norm_mean_type": None, "norm_std_type": "batch"}),
        (
            {"adv_estimator": "grpo", "norm_mean_type": "group", "norm_std_type": None},
            {"adv_estimator": "grpo", "norm_std_type": None},
        ),
        (
            {"importance_sampling": "seq", "pg_clip": 0.3},
            {"pg_clip": 0.3, "actor_train": {"pg_variant": "gspo", "gspo_clip_low": 0.3, "gspo_clip_high": 0.3}},
        ),
        (
            {"importance_sampling": "seq", "use_pg_clip_range": True, "pg_clip_high": 0.28},
            {
                "pg_clip": [0.2, 0.28],
                "actor_train": {"pg_variant": "gspo", "gspo_clip_low": 0.2, "gspo_clip_high": 0.28},
            },
        ),
        ({"importance_sampling": "token"}, {}),
        ({"force_disable_old_logprobs_recompute": True, "enable_old_logprobs_recompute": True}, {"old_logprobs": "bypass"}),
        (
            {"use_rollout_importance_sampling_ratio": True, "rollout_importance_sampling_ratio_upper_bound": 2.0},
            {"train_infer_correction": {"is_weight": {"enabled": True, "upper_bound": 2.0}}},
        ),
        (
            {"train_infer_ratio_mask": True, "train_infer_ratio_threshold_low": 0.5, "train_infer_diff_seq_mask": True},
            {
                "train_infer_correction": {
                    "filters": [
                        {"enabled": True, "agg_type": "token", "ratio_enabled": True, "diff_enabled": False, "ratio_low": 0.5},
                        {"enabled": True, "agg_type": "geometric", "ratio_enabled": False, "diff_enabled": True},
                    ]
                }
            },
        ),
        (
            {"train_infer_correction": {"is_weight": {"upper_bound": None, "detach": True}}},
            {"train_infer_correction": {"is_weight": {"upper_bound": float("inf")}}},
        ),
        (
            {"actor_train": {"model_args": {"flash_attn": "fa2"}}},
            {"actor_train": {"model_args": {"attn_implementation": "sdpa"}}},
        ),
        (
            {"actor_train": {"model_args": {"flash_attn": False}}},
            {"actor_train": {"model_args": {"attn_implementation": "sdpa"}}},
        ),
        ({"actor_train": {"worker_cls": "roll.pipeline.base_worker.ActorWorker"}}, {"actor_train": {"worker_cls": None}}),
        ({"actor_train": {"max_tokens_per_microbatch_in_train": 0}}, {"actor_train": {}}),
        ({"actor_infer": {"generating_args": {"top_k": -1, "num_beams": 1}}}, {"actor_infer": {"generating_args": {"top_k": 0}}}),
        ({"actor_infer": {"generating_args": {"num_return_sequences": 1}}}, {"actor_infer": {"generating_args": {}}}),
        (
            {"reference": {"strategy_args": {"strategy_name": "hf_infer", "strategy_config": None}}},
            {"reference": {"strategy_args": {"strategy_name": "fsdp2_infer", "strategy_config": {}}}},
        ),
        (
            {"actor_train": {"strategy_args": {"strategy_name": "fsdp2_train", "strategy_config": {"reduce_dtype": "fp32"}}}},
            {"actor_train": {"strategy_args": {"strategy_name": "fsdp2_train", "strategy_config": {}}}},
        ),
        (
            {"actor_train": {"data_args": {"template": "qwen2_5", "prompt": None, "interleave_probs": "1.0"}}},
            {"actor_train": {"data_args": {"template": "native"}}},
        ),
        ({"global_template": "empty"}, {"actor_train": {"data_args": {"template": "chatml"}}}),
        (
            {
                "rewards": {
                    "qa": {"worker_cls": "a.B", "reward_type": "soft", "model_args": {"dtype": "bf16"}, "tag_included": None}
                }
            },
            {"rewards": {"qa": {"worker_cls": "a.B", "reward_args": {"reward_type": "soft"}}}},
        ),
    ],
)
def test_names_and_values_of_rlvr_are_read_as(written, read):
    made = rlvr(written)
    assert made.mapping == read
    assert made.lacking == []


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"reward_normalization": {"method": "mean"}}, {"norm_mean_type": "group", "norm_std_type": None}),
        ({"reward_normalization": {"method": "mean_std"}}, {"norm_mean_type": "group", "norm_std_type": "group"}),
        # agentic/agentic_config.py:36, commit 8eb27cc2: the name is left, nothing is clipped
        ({"reward_normalization": {"method": "asym_clip"}}, {"norm_mean_type": "group", "norm_std_type": "group"}),
        ({"reward_normalization": {"method": "identity"}}, {"norm_mean_type": None, "norm_std_type": None}),
    ],
)
def test_how_agentic_rewards_are_normalised(written, read):
    assert translate(written, AgenticConfig).mapping["reward_normalization"] == read


def test_a_length_of_the_response_makes_an_episodes_length():
    assert translate({"response_length": 100, "prompt_length": 28}, AgenticConfig).mapping == {"sequence_length": 128}
    given = translate({"response_length": 100, "sequence_length": 64}, AgenticConfig)
    assert given.mapping == {"sequence_length": 64}
    assert [note.message for note in given.without_effect] == ["sequence_length = 64 is given, too, and counts"]


def test_environments_of_gem_and_placeholders_of_step_templates():
    env = {
        "env_type": "qa:HotpotQA",
        "env_config": {"dataset_name": "d"},
        "agent_template": "{current_step}: {current_observation}",
    }
    made = translate({"custom_envs": {"QA": env}}, AgenticConfig).mapping["custom_envs"]["QA"]
    assert made == {
        "env_type": "gem",
        "env_config": {"dataset_name": "d", "env_id": "qa:HotpotQA"},
        "agent_template": "{turn_idx}: {observation}",
    }


def test_a_question_has_no_limit_of_its_own():
    envs = {name: {"env_type": name, "env_config": {"dataset_name": "d", "max_steps": 10}} for name in ("roll_math", "sokoban")}
    made = translate({"custom_envs": envs}, AgenticConfig)
    assert made.mapping["custom_envs"]["roll_math"] == {"env_type": "roll_math", "env_config": {"dataset_name": "d"}}
    assert made.mapping["custom_envs"]["sokoban"] == envs["sokoban"]
    assert [note.key for note in made.aliased] == ["custom_envs.roll_math.env_type"]


def test_a_block_that_two_keys_share_becomes_two():
    shared = {"env_config": {"dataset_name": "d", "max_steps": 10}}
    envs = {"Q": {"env_type": "roll_math", **shared}, "S": {"env_type": "sokoban", **shared}}
    made = translate({"custom_envs": envs}, AgenticConfig).mapping["custom_envs"]
    assert (made["Q"]["env_config"], made["S"]["env_config"]) == ({"dataset_name": "d"}, shared["env_config"])


@pytest.mark.parametrize(
    ("mapping", "key"),
    [
        ({"kl_penalty": "full"}, "kl_penalty"),
        ({"rl_loss_coef": 0.0}, "rl_loss_coef"),
        ({"profiler_timeline": True}, "profiler_timeline"),
        ({"difficulty_loss_weight": True}, "difficulty_loss_weight"),
        ({"reward": {"device_mapping": "0"}}, "reward"),
        ({"actor_train": {"router_replay": {"mode": "R2"}}}, "actor_train.router_replay"),
        ({"reference": {"router_replay": {"mode": "R3"}}}, "reference.router_replay"),
        ({"actor_infer": {"generating_args": {"num_beams": 4}}}, "actor_infer.generating_args.num_beams"),
        ({"rewards": {"j": {"worker_cls": "a.B", "reward_manager_config": [{}]}}}, "rewards.j.reward_manager_config"),
    ],
)
def test_what_is_lacking_is_told_and_taken_away(mapping, key):
    made = rlvr(mapping)
    assert [note.key for note in made.lacking] == [key]
    assert len(made.lacking[0].message) > 10
    load_config(RLVRConfig, {**made.mapping})


def test_a_critic_is_read_with_gae_only():
    critic = {
        "training_args": {"learning_rate": 1.0e-5, "num_train_epochs": 50},
        "model_args": {"num_labels": 1, "dtype": "bf16"},
        "strategy_args": {"strategy_name": "deepspeed_train", "strategy_config": {}},
        "infer_batch_size": 4,
        "device_mapping": "0",
    }
    given = {"critic": critic, "value_clip": 0.5, "lambd": 0.9, "critic_warmup": 3, "reward_pretrain": "values"}
    made = rlvr({"adv_estimator": "gae", **given})
    assert made.mapping["critic"] == {
        "training_args": {"learning_rate": 1.0e-5},
        "model_args": {"dtype": "bf16", "model_name_or_path": "values"},
        "strategy_args": critic["strategy_args"],
        "device_mapping": "0",
    }
    config = load_config(RLVRConfig, made.mapping)
    assert (config.value_clip, config.lambd, config.critic_warmup) == (0.5, 0.9, 3)
    for without in ({"adv_estimator": "reinforce"}, {}):
        made = rlvr({**without, **given})
        assert made.mapping == without
        assert {note.key for note in made.without_effect} == given.keys()


@pytest.mark.parametrize(
    ("role", "block"),
    [
        ("critic", {"model_args": {"model_type": "trl"}}),
        ("critic", {"model_args": {"model_type": "auto_token_classification"}}),
        ("actor_train", {"model_args": {"freeze_module_prefix": "vision_model,audio_model, talker"}}),
        ("actor_train", {"model_args": {"freeze_module_prefix": ["model.visual"]}}),
        ("actor_train", {"strategy_args": {"strategy_config": {"offload_policy": True, "apply_tiled_mlp": True, "ep_size": 8}}}),
        ("actor_train", {"strategy_args": {"strategy_config": {"moe_layer_recompute": True}}}),
        ("actor_train", {"strategy_args": {"strategy_config": {"sequence_parallel": True, "tensor_model_parallel_size": 1}}}),
    ],
)
def test_what_changes_no_result_is_ignored_and_told(role, block):
    made = rlvr({"adv_estimator": "gae", role: block})
    assert made.lacking == [] and len(made.without_effect) >= 1 and all(note.message for note in made.without_effect)
    left = made.mapping[role].get("model_args", {}) | made.mapping[role].get("strategy_args", {}).get("strategy_config", {})
    assert left.keys() <= {"tensor_model_parallel_size"}


@pytest.mark.parametrize("prefix", ["model.layers.0", "vision_model,model.embed_tokens", "lm_head", 5, ["model"]])
def test_parts_that_read_text_are_not_frozen(prefix):
    made = rlvr({"actor_train": {"model_args": {"freeze_module_prefix": prefix}}})
    assert [note.key for note in made.lacking] == ["actor_train.model_args.freeze_module_prefix"]


def test_sequence_parallelism_among_several_ranks_stays():
    config = {"sequence_parallel": True, "tensor_model_parallel_size": 2}
    made = rlvr({"actor_train": {"strategy_args": {"strategy_name": "megatron_train", "strategy_config": dict(config)}}})
    assert made.mapping["actor_train"]["strategy_args"]["strategy_config"] == config


@pytest.mark.parametrize(("tensor", "read"), [(1, "fsdp2_train"), (None, "fsdp2_train"), (2, "megatron_train")])
def test_adapters_are_trained_by_fsdp2_where_megatron_would_not_divide_the_model(tensor, read):
    strategy = {"strategy_name": "megatron_train", "strategy_config": {"tensor_model_parallel_size": tensor}}
    made = rlvr({"actor_train": {"model_args": {"lora_target": "all-linear"}, "strategy_args": strategy}})
    assert made.mapping["actor_train"]["strategy_args"]["strategy_name"] == read
    without = rlvr({"actor_train": {"strategy_args": strategy}})
    assert without.mapping["actor_train"]["strategy_args"]["strategy_name"] == "megatron_train"


@pytest.mark.parametrize(
    ("mock", "lacking"),
    [
        (None, []),
        ({"enable": False, "mode": "mock"}, []),
        ({"enable": True, "mode": "dump", "dump_dir": "x"}, []),
        ({"enable": True, "mode": "mock"}, ["rollout_mock"]),
        (5, ["rollout_mock"]),
    ],
)
def test_rollouts_that_are_only_recorded_change_nothing(mock, lacking):
    made = rlvr({"rollout_mock": mock})
    assert "rollout_mock" not in made.mapping and [note.key for note in made.lacking] == lacking


def test_a_switch_that_is_off_changes_nothing():
    off = {
        "profiler_timeline": False,
        "rl_loss_coef": 1.0,
        "actor_train": {"router_replay": None},
    }
    made = rlvr(off)
    assert (made.mapping, made.lacking, made.aliased) == ({"actor_train": {}}, [], [])
    assert len(made.without_effect) == 3


def test_the_trainers_update_frequency_is_the_push_interval():
    made = rlvr({"actor_train": {"model_update_frequency": 2}, "actor_infer": {"model_update_frequency": 2}})
    assert made.mapping == {"actor_train": {}, "actor_infer": {}, "weight_push_interval": 2}
    assert [note.key for note in made.without_effect] == ["actor_infer.model_update_frequency"]


def test_a_back_end_that_is_not_there_takes_its_options_along():
    block = {"strategy_name": "diffusion_deepspeed_train", "strategy_config": {"fsdp_size": 8, "anything": 1}}
    made = rlvr({"actor_train": {"strategy_args": block}})
    assert made.mapping == {"actor_train": {"strategy_args": {}}}
    assert [note.key for note in made.lacking] == ["actor_train.strategy_args.strategy_name"]
    assert made.without_effect == []


def test_the_key_of_this_project_counts_where_both_are_given():
    made = rlvr({"actor_train": {"model_args": {"flash_attn": "fa2", "attn_implementation": "eager"}}})
    assert made.mapping == {"actor_train": {"model_args": {"attn_implementation": "eager"}}}
    assert [note.message for note in made.without_effect] == [
        "actor_train.model_args.attn_implementation = 'eager' is given, too, and counts"
    ]


def test_what_is_read_remembers_the_key_that_was_written():
    made = rlvr({"actor_train": {"model_args": {"flash_attn": "fa2"}}})
    assert made.moved == {"actor_train.model_args.attn_implementation": "actor_train.model_args.flash_attn"}


def test_classes_and_environments_of_roll_that_are_not_here():
    mapping = {
        "custom_envs": {
            "A": {"env_type": "webshop", "env_manager_cls": "roll.agentic.env_manager.vl.VL"},
            "B": {"env_type": "sokoban", "env_manager_cls": "mine.Manager"},
        }
    }
    made = translate(mapping, AgenticConfig, has_class=lambda path: False, has_environment=lambda name: name == "sokoban")
    assert [note.key for note in made.lacking] == ["custom_envs.A.env_type", "custom_envs.A.env_manager_cls"]
    assert "needs the shop that ROLL brings" in made.lacking[0].message, "what it would take"
    assert made.mapping["custom_envs"]["A"]["env_manager_cls"] == "roll.pipeline.agentic.env_manager.vl.VL"


def test_a_file_of_rolls_for_models_that_see_is_read():
    """As its examples of RLVR on images are written."""
    detection = "roll.pipeline.rlvr.rewards.detection_reward_worker.DetectionRewardWorker"
    data = {"template": "qwen2-vl", "image_max_pixels": 1048576}
    written = {
        "pretrain": "Qwen/Qwen2.5-VL-3B-Instruct",
        "actor_train": {"model_args": {"freeze_module_prefix": "model.visual"}, "data_args": data},
        "rewards": {"boxes": {"worker_cls": detection}},
    }
    made = translate(written, RLVRConfig, has_class=lambda path: True)
    read = made.mapping["actor_train"]
    assert read["model_args"] == {"freeze_vision": True}
    assert read["data_args"] == {"template": "native", "images": {"max_pixels": 1048576}}
    assert made.lacking == []
    assert made.mapping["rewards"]["boxes"]["worker_cls"] == detection


@pytest.mark.parametrize("compat", [False, True])
def test_a_lacking_value_of_a_key_that_is_needed_is_told_by_its_own_reason(compat, monkeypatch, tmp_path):
    elsewhere = "roll.pipeline.rlvr.rewards.elsewhere.Worker"
    rule = KeyRule("rewards.<name>.worker_cls", "lacking", "asks a service", when=lambda v, b: v == elsewhere)
    monkeypatch.setitem(translation._BY_NAME, "worker_cls", [rule])
    (tmp_path / "run.yaml").write_text(f"pretrain: x\nprompt_length: 8\nrewards: {{a: {{worker_cls: {elsewhere}}}}}\n")
    key = "rewards.a.worker_cls"
    if compat:
        _, report = load(tmp_path, "run", compat=True)
        assert [(note.key, note.value, note.message) for note in report.lacking] == [(key, elsewhere, "asks a service")]
    else:
        with pytest.raises(ConfigError) as refused:
            load(tmp_path, "run")
        (problem,) = refused.value.problems
        assert (problem.key, problem.value, problem.message) == (key, elsewhere, "is not supported: asks a service")


def test_a_classifier_of_rolls_is_the_reward_model_of_its_domain():
    written = {
        "worker_cls": "roll.pipeline.base_worker.RewardWorker",
        "model_args": {"model_name_or_path": "/models/rm", "model_type": "auto_sequence_classification"},
        "strategy_args": {"strategy_name": "hf_infer"},
        "device_mapping": "list(range(2,4))",
        "infer_batch_size": 4,
    }
    result = rlvr({"rewards": {"helpful": written}})
    read = result.mapping["rewards"]["helpful"]
    assert read.pop("worker_cls") == "roll.pipeline.rlvr.rewards.reward_model_worker.RewardModelWorker"
    assert read.pop("reward_model") == {
        "device_mapping": "list(range(2,4))",
        "model_name_or_path": "/models/rm",
        "strategy_args": {"strategy_name": "hf_infer", "strategy_config": {}},
    }
    assert read == {"timeout_s": 120.0} and result.lacking == []


def test_null_means_the_default_only_if_asked():
    mapping = {"max_steps": None, "reward_clip": None, "rewards": {"m": {"worker_cls": "a.B", "timeout_s": None}}}
    assert rlvr(mapping).mapping == mapping
    made = translate(mapping, RLVRConfig, written_for_roll=True)
    assert made.mapping == {"reward_clip": None, "rewards": {"m": {"worker_cls": "a.B"}}}
    assert [note.key for note in made.aliased] == ["max_steps", "rewards.m.timeout_s"]


values = (
    st.none()
    | st.booleans()
    | st.integers(-2, 9)
    | st.sampled_from(["fa2", "gae", "seq", "group", "hf_infer", "x"])
    | st.just({})
)
paths = [path for key in keys() for path in in_every_role(key)]


def nest(entries):
    mapping = {}
    for path, value in entries:
        block = mapping
        for name in path[:-1]:
            block = block.setdefault(name.replace("<name>", "math"), {})
            if not isinstance(block, dict):
                break
        else:
            block[path[-1]] = value
    return mapping


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(paths), values), max_size=6), st.sampled_from(PIPELINES))
def test_translation_is_pure_settles_and_never_fails(entries, cls):
    mapping = nest(entries)
    before = copy.deepcopy(mapping)
    made = translate(mapping, cls, written_for_roll=True)
    assert mapping == before
    again = translate(made.mapping, cls, written_for_roll=True)
    assert again.mapping == made.mapping
    assert repr(DROP) not in repr(made.mapping)


def test_other_defaults_are_told_where_a_key_is_left_out():
    config = load_config(RLVRConfig, {"actor_infer": {"generating_args": {"top_p": 0.7}}, "validation": {}})
    told = {
        note.key: (note.value, note.message)
        for note in other_defaults(config, {"actor_infer": {"generating_args": {"top_p": 0.7}}})
    }
    assert "actor_infer.generating_args.top_p" not in told
    assert told["actor_infer.generating_args.top_k"][0] == 0
    assert "50" in told["actor_infer.generating_args.top_k"][1]
    assert told["num_return_sequences_in_group"][0] == 8
    assert "validation.generating_args.temperature" in told
    assert "train_env_manager.tags" not in told


@pytest.mark.parametrize("key", [key for key, _, _ in DEFAULTS])
def test_every_default_that_is_compared_is_a_field(key):
    assert any(has_field(cls, tuple(key.split("."))) for cls in PIPELINES)


@pytest.mark.parametrize(
    ("templates", "system"),
    [
        ({"agent_system_template": "You {play}.", "agent_template": "{observation}"}, "You {{play}}.\n{instructions}"),
        ({"agent_template": "{observation}"}, "{instructions}"),
        ({"agent_system_template": "You.", "agent_template": "{env_instruction} {current_observation}"}, "You."),
        ({"agent_system_template": "{instructions}", "agent_template": "{observation}"}, "{instructions}"),
    ],
)
def test_the_rules_of_an_environment_are_told_as_roll_tells_them(templates, system):
    mapping = {"custom_envs": {"Lake": {"env_type": "frozen_lake", **templates}}}
    made = translate(mapping, AgenticConfig, written_for_roll=True).mapping["custom_envs"]["Lake"]
    assert made["agent_system_template"] == system
    assert "rules" in system.format(instructions="the rules") or "{instructions}" in made["agent_template"]
    untouched = translate(mapping, AgenticConfig).mapping["custom_envs"]["Lake"]
    assert untouched.get("agent_system_template") == templates.get("agent_system_template")


GAME = {"env_type": "frozen_lake", "env_config": {"env_instruction": "Go {fast}."}}


@pytest.mark.parametrize(
    ("templates", "system", "turn"),
    [
        ({}, "Go {{fast}}.\n{instructions}", None),
        ({"agent_system_template": "You."}, "You.\nGo {{fast}}.\n{instructions}", None),
        ({"agent_template": "{env_instruction}|{observation}"}, None, "Go {{fast}}.\n{instructions}|{observation}"),
    ],
)
def test_an_instruction_of_the_users_stands_before_the_rules_of_the_game(templates, system, turn):
    made = translate({"custom_envs": {"Lake": {**GAME, **templates}}}, AgenticConfig, written_for_roll=True)
    lake = made.mapping["custom_envs"]["Lake"]
    assert lake["env_config"] == {}
    assert (lake.get("agent_system_template"), lake.get("agent_template")) == (system, turn)
    assert "custom_envs.Lake.env_config.env_instruction" in {note.key for note in made.aliased}


def test_an_environment_of_the_users_own_keeps_its_instruction():
    mapping = {"custom_envs": {"Mine": {**GAME, "env_type": "my.Env"}}}
    made = translate(mapping, AgenticConfig, written_for_roll=True)
    assert made.mapping["custom_envs"]["Mine"]["env_config"] == GAME["env_config"]


def test_the_validation_that_roll_has_by_default():
    run = {"actor_train": {"device_mapping": "0"}, "train_env_manager": {"tags": ["Lake"]}, "val_batch_size": 64}

    def validation(**changes):
        made = translate({**run, **changes}, AgenticConfig, written_for_roll=True)
        return made.mapping.get("val_env_manager", {}).get("tags"), made.mapping.get("val_batch_size")

    sokoban = {"SimpleSokoban": {"env_type": "sokoban"}}
    assert validation(custom_envs=sokoban) == (["SimpleSokoban"], 64)
    assert validation(custom_envs=sokoban, eval_steps=0) == (None, None)
    assert validation(custom_envs={"Lake": {"env_type": "frozen_lake"}}) == (None, None)
    assert validation(custom_envs=sokoban, val_env_manager={"tags": ["SimpleSokoban", "X"]}) == (["SimpleSokoban", "X"], 64)


def test_symbols_of_sokoban():
    env = {"env_type": "sokoban", "env_config": {"grid_lookup": {0: "W", 6: "@"}, "grid_vocab": {"W": "wall"}}}
    made = translate({"custom_envs": {"S": env}}, AgenticConfig)
    assert made.mapping["custom_envs"]["S"]["env_config"] == {"grid_vocabulary": {"wall": "W", "player_on_target": "@"}}
    assert [note.key for note in made.without_effect] == ["custom_envs.S.env_config.grid_vocab"]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"trainer": {"generate_ahead_steps": 2}}, {"async_generation_ratio": 1}),
        ({"generate_ahead_steps": 1}, {"async_generation_ratio": 0}),
        ({"generate_ahead_steps": 3, "async_generation_ratio": 0.5}, {"async_generation_ratio": 0.5}),
        ({"actor_rollout_ref": {"async_pipeline": False}}, {"async_generation_ratio": 0}),
        ({"async_pipeline": True}, {"async_generation_ratio": 1}),
        ({"async_pipeline": True, "async_generation_ratio": 0.5}, {"async_generation_ratio": 0.5}),
        ({"actor_rollout_ref": {"rollout": {"enable_dual_buffer": True}}}, {}),
        (
            {"param_update_preduce_bucket_size_mb": 512, "param_update_consume_bucket_size_mb": 512},
            {"model_update_buffer_size_mb": 512},
        ),
        ({"param_update_consume_bucket_size_mb": 128}, {"model_update_buffer_size_mb": 128}),
        (
            {"use_nodes_ratios": [0.25, 0.25, 0.5, 0.5], "num_nodes": 2, "num_gpus_per_node": 4, "use_kl_loss": True},
            {
                "num_nodes": 2,
                "num_gpus_per_node": 4,
                "use_kl_loss": True,
                "actor_train": {"device_mapping": [0, 1]},
                "reference": {"device_mapping": [0, 1, 2, 3]},
                "actor_infer": {"device_mapping": [4, 5, 6, 7]},
            },
        ),
        ({"sync_interval": 10}, {"weight_push_interval": 10, "async_generation_ratio": 9, "async_pipeline_depth": 9}),
    ],
)
def test_keys_of_verls_pipeline_that_mean_the_same_are_read(written, read):
    result = rlvr(written)
    assert (result.mapping, result.lacking) == (read, [])
    assert result.aliased or result.without_effect, "reported"


PRINTED_BY_VERL = (
    "actor_rollout_ref.async_pipeline=True",
    "trainer.use_nodes_ratios=[0.5,0.5,0.5,0.5]",
    "actor_rollout_ref.rollout.enable_dual_buffer=True",
    "actor_rollout_ref.rollout.param_update_preduce_bucket_size_mb=512",
    "actor_rollout_ref.rollout.param_update_consume_bucket_size_mb=128",
    "trainer.generate_ahead_steps=2",
)


@pytest.mark.parametrize("order", [1, -1])
def test_the_six_keys_that_verl_prints_are_read_in_any_order(order):
    printed = [f"+{each}" for each in PRINTED_BY_VERL][::order]
    config, _ = load("examples/config", "rlvr_config_async", ["num_gpus_per_node=8", "~async_generation_ratio", *printed])
    assert (config.async_generation_ratio, config.model_update_buffer_size_mb) == (1, 128)
    devices = {name: role.device_mapping for name, role in config.configured_roles().items()}
    assert devices == {"actor_train": "list(range(0,1))", "actor_infer": "list(range(1,2))"}, "the file's own count"
    own = ["~actor_train.device_mapping", "~actor_infer.device_mapping"]
    config, report = load("examples/config", "rlvr_config_async", ["num_gpus_per_node=8", *own, *printed])
    assert config.actor_train.devices == (0, 1, 2, 3) and config.actor_infer.devices == (4, 5, 6, 7)
    told = {note.key: note.message for note in report.without_effect}
    assert "hf_infer has a second set" in told["actor_rollout_ref.rollout.enable_dual_buffer"]


@pytest.mark.parametrize(
    ("written", "key", "advice"),
    [
        ({"trainer": {"use_nodes_ratios": [0.5, 0.5, 0.5, 0.5]}}, "trainer.use_nodes_ratios", "num_gpus_per_node, which"),
        (
            {"trainer": {"use_nodes_ratios": [0.5, 0.5, 0.5, 0.5]}, "num_gpus_per_node": 3},
            "trainer.use_nodes_ratios",
            "actor_infer.device_mapping",
        ),
        ({"use_nodes_ratios": [0.75, 0.75, 0.5, 0.5], "num_gpus_per_node": 8}, "use_nodes_ratios", "actor_infer.device_mapping"),
        (
            {"use_nodes_ratios": [0.5, 0.25, 0.5, 0.5], "num_gpus_per_node": 8},
            "use_nodes_ratios",
            "actor_log_prob.device_mapping",
        ),
        ({"generate_ahead_steps": 0}, "generate_ahead_steps", "async_generation_ratio"),
        ({"param_update_consume_bucket_size_mb": 0}, "param_update_consume_bucket_size_mb", "model_update_buffer_size_mb"),
        ({"async_pipeline": "yes"}, "async_pipeline", "async_generation_ratio"),
        ({"sync_interval": 0}, "sync_interval", "weight_push_interval"),
    ],
)
def test_keys_of_verls_pipeline_that_mean_something_else_are_refused_with_the_key_that_does_it(written, key, advice):
    (note,) = rlvr(written).lacking
    assert note.key == key and advice in note.message


@pytest.mark.parametrize(
    ("theirs", "ours", "counts"),
    [
        ({"trainer": {"generate_ahead_steps": 3}}, {"async_generation_ratio": 1}, "async_generation_ratio = 1"),
        ({"async_pipeline": False}, {"async_generation_ratio": 1.0}, "async_generation_ratio = 1.0"),
        ({"sync_interval": 4}, {"weight_push_interval": 2}, "weight_push_interval = 2"),
        ({"param_update_preduce_bucket_size_mb": 64}, {"model_update_buffer_size_mb": 512}, "model_update_buffer_size_mb = 512"),
    ],
)
def test_verls_key_that_is_outvoted_is_told_when_a_run_starts(theirs, ours, counts):
    made = rlvr({**theirs, **ours})
    assert made.mapping | ours == made.mapping
    assert [note.message for note in LoadReport(without_effect=made.without_effect).told] == [
        f"{counts} is given, too, and counts"
    ]
    agreed = rlvr({"generate_ahead_steps": 2, "async_generation_ratio": 1})
    assert agreed.without_effect == [], "nobody expects anything else"
