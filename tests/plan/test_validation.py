import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.core.configs.derived import derive
from roll.core.configs.problems import ConfigError, Problem
from roll.core.configs.rlvr import RLVRConfig
from roll.plan.rules.loading import load_config
from roll.plan.rules.validation import check_config

GOOD = {
    "pretrain": "model",
    "rollout_batch_size": 32,
    "num_return_sequences_in_group": 8,
    "prompt_length": 16,
    "response_length": 8,
    "async_generation_ratio": 1,
    "actor_train": {
        "device_mapping": "0-1",
        "data_args": {"file_name": "train.jsonl"},
        "training_args": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8},
    },
    "actor_infer": {"device_mapping": [2, 3]},
    "validation": {"data_args": {"file_name": "validation.jsonl"}},
    "rewards": {"math": {"worker_cls": "my.Math", "tag_included": ["gsm8k", "aime"]}, "code": {"worker_cls": "my.Code"}},
}

DRAFTS = {"method": "ngram", "num_speculative_tokens": 4}


def merged(base, changes):
    out = dict(base)
    for key, value in changes.items():
        out[key] = merged(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


def configure(**changes):
    return load_config(RLVRConfig, merged(GOOD, changes))


def check(device_count=4, **changes):
    return {problem.key: problem for problem in check_config(configure(**changes), device_count)}


def train(**changes):
    return {"actor_train": changes}


def test_a_good_configuration_has_no_problem():
    assert check() == {}


def test_the_defaults_alone_name_everything_that_is_missing():
    found = {problem.key for problem in check_config(RLVRConfig(), 2)}
    assert found == {
        "response_length",
        "rewards",
        "actor_train.device_mapping",
        "actor_infer.device_mapping",
        "actor_train.model_args.model_name_or_path",
        "actor_infer.model_args.model_name_or_path",
        "actor_train.data_args.file_name",
    }


FILTER = "rewards.code.query_filter_config"


def filtered(**config):
    return {"rewards": {"code": {"query_filter_config": config}}}


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"exp_name": "a/b"}, "exp_name", "plain folder name"),
        (
            {"rewards": {"code": {"shaping": {"overlong_buffer": 10_000}}}},
            "rewards.code.shaping.overlong_buffer",
            "every response would lose some",
        ),
        ({"resume_from_checkpoint": ""}, "resume_from_checkpoint", "empty"),
        ({"track_with": ["none", "wandb"]}, "track_with", "none"),
        ({"deterministic": True}, "deterministic", "async_generation_ratio 0, not 1"),
        (
            {"deterministic": True, "async_generation_ratio": 0, "redundant_groups": 3},
            "deterministic",
            "redundant_groups",
        ),
        ({"weights_address": "10.0.0.1"}, "weights_address", "nothing is served with mode: both"),
        (
            {"mode": "train", "weights_address": "10.0.0.1", "model_update_transport": "checkpoint_dir"},
            "weights_address",
            "nothing is served",
        ),
        ({"mode": "train", "weights_address": "0.0.0.0"}, "weights_address", "would not know"),
        ({"mode": "train", "weights_address": "[::]:7701"}, "weights_address", "would not know"),
        ({"mode": "train", "weights_address": "h0:0"}, "weights_address", "0 is no port: write one from 1 to 65535"),
        ({"member_timeout": 5}, "member_timeout", "no effect with mode: both without groups_database"),
        ({"peer_timeout": 600, "groups_database": "sqlite:///g.db"}, "peer_timeout", "no effect with mode: both"),
        ({"weight_anchor_interval": 4}, "weight_anchor_interval", "with mode: both all versions are whole"),
        (
            {
                "mode": "train",
                "weight_anchor_interval": 4,
                "old_logprobs": "recompute",
                "actor_log_prob": {"device_mapping": "3"},
            },
            "weight_anchor_interval",
            "actor_log_prob takes whole versions alone",
        ),
        (
            {"mode": "train", "model_update_transport": "ipc"},
            "model_update_transport",
            "in one run: mode is train",
        ),
        (
            {"mode": "explore", "model_update_transport": "collective"},
            "model_update_transport",
            "in one run: mode is explore",
        ),
        ({"num_nodes": 2, "model_update_transport": "ipc"}, "model_update_transport", "num_nodes is 2"),
        ({"mode": "train", "model_update_transport": "nccl"}, "model_update_transport", "mode is train"),
        (
            {"model_update_transport": "nccl", "actor_infer": {"device_mapping": "0"}, "actor_train": {"device_mapping": "0"}},
            "model_update_transport",
            "both are on [0], and NCCL has one member a device",
        ),
        (
            {
                "keep_sampling_mask": True,
                "actor_infer": {
                    "strategy_args": {"strategy_name": "vllm", "strategy_config": {"speculative_config": DRAFTS}},
                    "generating_args": {"top_k": 5},
                },
            },
            "actor_infer.strategy_args.strategy_config.speculative_config",
            "keep_sampling_mask needs a report of each token",
        ),
        *[
            (
                {
                    "actor_train": {"router_replay": {"mode": "R3"}},
                    "actor_infer": {"strategy_args": {"strategy_name": "vllm", "strategy_config": {argument: value}}},
                },
                f"actor_infer.strategy_args.strategy_config.{argument}",
                message,
            )
            for argument, value, message in (
                ("pipeline_parallel_size", 2, "no process of such an engine has them"),
                ("enable_prefix_caching", False, "by the blocks of the prefix cache"),
                ("speculative_config", DRAFTS, "router_replay.mode needs a report of each token"),
                ("enable_return_routed_experts", False, "the engine has to report its experts"),
            )
        ],
        ({"response_length": None}, "response_length", "response_length or sequence_length"),
        ({"sequence_length": 20}, "sequence_length", "prompt_length 16 + response_length 8 = 24 > sequence_length 20"),
        ({"response_length": None, "sequence_length": 16}, "sequence_length", "16 - prompt_length 16 = 0"),
        (
            {"actor_infer": {"generating_args": {"max_new_tokens": 9}}},
            "actor_infer.generating_args.max_new_tokens",
            "9 > response_length 8",
        ),
        (
            {"validation": {"generating_args": {"max_new_tokens": 9}}},
            "validation.generating_args.max_new_tokens",
            "9 > response_length 8",
        ),
        (
            {"actor_infer": {"strategy_args": {"strategy_config": {"kv_cache_tokens": 23}}}},
            "actor_infer.strategy_args.strategy_config.kv_cache_tokens",
            "23 < sequence_length 24",
        ),
        ({"async_pipeline_depth": 1.5}, "async_pipeline_depth", "1.5 > async_generation_ratio 1"),
        ({"async_generation_ratio": 0, "staleness_policy": "drop"}, "staleness_policy", "nothing to drop"),
        ({"async_generation_ratio": 0, "max_reuse": 2}, "max_reuse", "no more than 1 step can train"),
        ({"async_generation_ratio": 0, "synchronous_after_failures": 2}, "synchronous_after_failures", "no effect"),
        (
            {"async_generation_ratio": 1, "weight_push_interval": 2, "synchronous_after_failures": 2},
            "synchronous_after_failures",
            "wait forever",
        ),
        (
            {"async_generation_ratio": 1, "groups_database": "sqlite:///g.db", "synchronous_after_failures": 2},
            "synchronous_after_failures",
            "other processes",
        ),
        ({"async_generation_ratio": 1.5, "max_reuse": 4}, "max_reuse", "no more than 3 steps can train"),
        ({"async_generation_ratio": 1, "max_reuse": 2}, "max_reuse", "no effect"),
        ({"async_generation_ratio": 3, "weight_push_interval": 4, "max_reuse": 2}, "max_reuse", "no effect"),
        ({"async_generation_ratio": 4, "async_pipeline_depth": 2.0, "max_reuse": 2}, "async_pipeline_depth", "2 > 1.5"),
        ({"async_generation_ratio": 1, "groups_order": "newest"}, "groups_order", "staleness_policy wait"),
        ({"weight_push_interval": 3}, "weight_push_interval", "async_generation_ratio 1 lets only 2 start under one"),
        ({"weight_push_interval": 2, "async_pipeline_depth": 0.5}, "async_pipeline_depth", "0.5 < 1: with weight_push"),
        ({"weight_push_interval": 2, "weight_pull_interval": 5}, "weight_pull_interval", "has no effect"),
        ({"num_return_sequences_in_group": 1, "rollout_batch_size": 64}, "adv_estimator", "num_return_sequences_in_group is 1"),
        ({"norm_mean_type": "batch"}, "norm_mean_type", "grpo brings its own baseline"),
        ({"norm_std_type": "group"}, "norm_std_type", "grpo brings its own baseline"),
        (
            {
                "norm_std_type": "group",
                "adv_estimator": "reinforce",
                "num_return_sequences_in_group": 1,
                "rollout_batch_size": 64,
            },
            "norm_std_type",
            "num_return_sequences_in_group is 1",
        ),
        ({"difficulty_low_threshold": 1.0}, "difficulty_low_threshold", "1 >= difficulty_high_threshold 1"),
        (train(tis_lower_bound=1), "actor_train.tis_lower_bound", "1 >= tis_upper_bound 1"),
        ({"use_kl_loss": True, "kl_loss_coef": 0.1}, "reference", "use_kl_loss needs it"),
        ({"add_token_level_kl": True}, "reference", "add_token_level_kl needs it"),
        (
            {"add_token_level_kl": True, "init_kl_coef": 0, "reference": {"device_mapping": 0}},
            "init_kl_coef",
            "the weight is 0",
        ),
        ({"target_kl": 0.1}, "target_kl", "add_token_level_kl is false"),
        ({"adv_estimator": "gae"}, "critic", "gae needs it"),
        ({"adv_estimator": "remax", "norm_mean_type": "batch"}, "norm_mean_type", "remax brings its own baseline"),
        ({"adv_estimator": "gigpo"}, "adv_estimator", "one turn"),
        ({"adv_estimator": "gpro"}, "adv_estimator", "not an advantage estimator"),
        ({"adv_estimator": "opo", "norm_std_type": "running"}, "norm_std_type", "opo brings its own baseline"),
        ({"use_kl_loss": True, "reference": {"device_mapping": 0}}, "kl_loss_coef", "weight is 0"),
        ({"kl_loss_coef": 0.1}, "kl_loss_coef", "use_kl_loss is false"),
        (train(strategy_args={"strategy_name": "hf_infer"}), "actor_train.strategy_args.strategy_name", "does not fit"),
        (
            {"pretrain": None, **train(model_args={"model_name_or_path": "m"})},
            "actor_infer.model_args.model_name_or_path",
            "no model",
        ),
        (train(worker_cls="Mine"), "actor_train.worker_cls", "dotted path"),
        (train(data_args={"file_name": []}), "actor_train.data_args.file_name", "no prompt file"),
        ({"validation": {"data_args": {"file_name": ""}}}, "validation.data_args.file_name", "no prompt file"),
        ({"rewards": {"code": {"worker_cls": "no path"}}}, "rewards.code.worker_cls", "dotted path"),
        ({"rewards": {"code": {"tag_included": ["aime"]}}}, "rewards.code.tag_included", "belongs to rewards.math"),
        (
            train(data_args={"domain_interleave_probs": {"math": 1, "code": 1, "art": 1}}),
            "actor_train.data_args.domain_interleave_probs.art",
            "no rewards.art (domains: math, code)",
        ),
        (filtered(type="mean_filter"), f"{FILTER}.filter_args", "needs threshold_down or threshold_up"),
        (filtered(filter_args={"std_threshold": 1}), f"{FILTER}.filter_args.std_threshold", "no_filter does not read it"),
        (
            filtered(type="mean_filter", filter_args={"threshold_down": 1, "threshold_up": 0.5}),
            f"{FILTER}.filter_args.threshold_down",
            "1 >= threshold_up 0.5",
        ),
        (
            {
                **filtered(type="std_filter", filter_args={"std_threshold": 0}),
                "adv_estimator": "reinforce",
                "num_return_sequences_in_group": 1,
                "rollout_batch_size": 64,
            },
            f"{FILTER}.type",
            "needs groups",
        ),
        (
            {"actor_infer": {"generating_args": {"temperature": 0}}},
            "actor_infer.generating_args.temperature",
            "all equal",
        ),
        (
            {"actor_infer": {"generating_args": {"num_return_sequences": 4}}},
            "actor_infer.generating_args.num_return_sequences",
            "4 != num_return_sequences_in_group 8",
        ),
        (
            train(training_args={"warmup_ratio": 0.1, "warmup_steps": 3}),
            "actor_train.training_args.warmup_ratio",
            "warmup_steps 3",
        ),
        (train(device_mapping="0-"), "actor_train.device_mapping", "cannot be read"),
        (
            {"actor_infer": {"device_mapping": "3-4"}},
            "actor_infer.device_mapping",
            "no device 4: there are 4",
        ),
        ({"reference": {}, "use_kl_loss": True, "kl_loss_coef": 0.01}, "reference.device_mapping", "needs devices"),
        (
            {"rollout_batch_size": 30},
            "rollout_batch_size",
            "30 prompts x 8 responses = 240 samples, not a multiple of the optimiser batch: "
            "per_device_train_batch_size 4 x gradient_accumulation_steps 8 x 2 data-parallel ranks = 64",
        ),
    ],
)
def test_each_rule_names_its_key_and_shows_its_arithmetic(changes, key, message):
    found = check(**changes)
    assert set(found) == {key}
    assert message in found[key].message


@given(st.integers(1, 200), st.integers(1, 16), st.integers(1, 8), st.integers(1, 8), st.integers(1, 4))
def test_the_batch_rule_is_divisibility_and_its_fix_works(prompts, size, per_device, accumulation, ranks):
    def problems(prompts=prompts, **smaller):
        sizes = {"per_device_train_batch_size": per_device, "gradient_accumulation_steps": accumulation}
        return check(
            rollout_batch_size=prompts,
            num_return_sequences_in_group=size,
            adv_estimator="reinforce",
            actor_train={"device_mapping": list(range(ranks)), "training_args": sizes | smaller},
        )

    found = problems()
    assert bool(found) == (prompts * size % (per_device * accumulation * ranks) != 0)
    if found:
        others, *smaller = found["rollout_batch_size"].fix.removeprefix("rollout_batch_size ").split(", or ")
        assert all(problems(int(number)) == {} for number in others.split(" or "))
        assert all(problems(**{key: int(size)}) == {} for key, size in map(str.split, smaller))


def test_out_of_range_numbers_are_found_in_configurations_built_in_python():
    config = configure()
    broken = replace(config, pg_clip=-1.0, rewards={"math": replace(config.rewards["math"], timeout_s=0.0)})
    assert {problem.key for problem in check_config(broken, 4)} == {"pg_clip", "rewards.math.timeout_s"}


def test_between_processes_the_fix_of_a_transport_of_one_run_works():
    [problem] = check(mode="train", model_update_transport="collective").values()
    assert [check(mode="train", model_update_transport=fix) for fix in problem.fix.split(", or ")] == [{}, {}]


def test_overlapping_roles_are_allowed():
    assert check(device_count=2, actor_infer={"device_mapping": "0-1"}) == {}


def test_a_domain_without_a_share_is_none_of_the_batch():
    config = configure(actor_train={"data_args": {"domain_interleave_probs": {"math": 1}}})
    assert check_config(config, 4) == []
    assert derive(config).domain_shares == {"math": 1.0}


def test_derived_numbers():
    shares = {"data_args": {"domain_interleave_probs": {"math": 3, "code": 1}}}
    config = configure(
        async_generation_ratio=1.5,
        max_steps=10,
        ppo_epochs=2,
        actor_train=shares,
        pg_clip=[0.2, 0.28],
        track_with=["wandb"],
        output_dir="out",
        exp_name="run",
    )
    derived = derive(config)
    assert (derived.prompt_length, derived.response_length, derived.sequence_length) == (16, 8, 24)
    assert (derived.samples_per_step, derived.optimizer_batch_size) == (256, 64)
    assert derived.total_optimizer_steps == 80
    assert derived.staleness_bound == 2
    assert derived.domain_shares == {"math": 0.75, "code": 0.25}
    assert derived.tag_to_domain == {"gsm8k": "math", "aime": "math", "code": "code"}
    assert (derived.policy_loss.pg_clip_low, derived.policy_loss.pg_clip_high) == (0.2, 0.28)
    assert derived.trackers == ("wandb",)
    assert derived.run_dir == "out/run"
    assert derived.max_new_tokens == 8
    assert derived.requests_per_engine == 128


@pytest.mark.parametrize(("ratio", "bound"), [(0, 0), (0.5, 1), (1, 1), (2, 2), (4, 4)])
def test_staleness_bound_is_the_ceiling_of_the_ratio(ratio, bound):
    assert derive(configure(async_generation_ratio=ratio)).staleness_bound == bound


def test_response_length_may_come_from_sequence_length():
    derived = derive(configure(response_length=None, sequence_length=50))
    assert (derived.response_length, derived.max_new_tokens) == (34, 34)


def test_track_with_none_means_no_tracker():
    assert derive(configure(track_with="none")).trackers == ()


@pytest.mark.parametrize("clip", [[], [0.2], [0.1, 0.2, 0.3]])
def test_a_clip_is_a_number_or_a_range(clip):
    assert check(pg_clip=clip)["pg_clip"].message == "is no range"
    assert check(pg_clip=[0.2, 0.28]) == {}


def test_training_in_fp16_is_refused():
    assert check(actor_train={"model_args": {"dtype": "fp16"}})["actor_train.model_args.dtype"].fix == "bf16 or fp32"
    assert check(actor_infer={"model_args": {"dtype": "fp16"}}) == {}


def test_an_engine_is_on_one_node():
    """Two nodes of two devices: the engine of devices 1 and 2 would be on both."""
    tensor_parallel = {"strategy_name": "vllm", "strategy_config": {"tensor_parallel_size": 2}}
    split = {"device_mapping": [1, 2], "strategy_args": tensor_parallel}
    found = check(num_nodes=2, actor_train={"device_mapping": "0"}, actor_infer=split)
    assert "devices 1, 2 are one engine" in found["actor_infer.device_mapping"].message
    whole = {"device_mapping": [2, 3], "strategy_args": tensor_parallel}
    assert "actor_infer.device_mapping" not in check(num_nodes=2, actor_infer=whole)


def test_groups_of_devices_that_divide_the_weights_are_equal():
    def found(size):
        options = {"device_mapping": "0-5", "strategy_args": {"strategy_config": {"fsdp_size": size}}}
        return check(6, actor_train=options).get("actor_train.strategy_args.strategy_config.fsdp_size")

    assert [size for size in range(-1, 9) if found(size) is not None] == [0, 4, 5]
    assert "the 6 devices of actor_train do not divide" in found(4).message and found(4).fix == "a divisor of 6, or -1"


def test_ranks_that_divide_tokens_are_equal_groups_of_a_back_end_that_can():
    def found(strategy="fsdp2_train", size=4, **model):
        role = {"device_mapping": "0-5", "strategy_args": {"strategy_name": strategy}}
        return check(6, actor_train={**role, "model_args": {"ulysses_size": size, **model}}).get(
            "actor_train.model_args.ulysses_size"
        )

    assert [size for size in range(1, 7) if found(size=size) is not None] == [4, 5]
    assert "the 6 devices of actor_train do not divide" in found().message and found().fix == "a divisor of 6"
    assert found("deepspeed_train", 3) is None
    assert "context_parallel_size" in found("megatron_train", 3).fix
    assert found(size=3, attn_implementation="eager").fix == "actor_train.model_args.attn_implementation: sdpa"
    engine = check(actor_infer={"model_args": {"ulysses_size": 2}})["actor_infer.model_args.ulysses_size"]
    assert "hf_infer divides no tokens" in engine.message and engine.fix == "remove it"


def test_missing_devices_name_the_machines_that_would_have_them():
    found = check(num_nodes=2, actor_infer={"device_mapping": [2, 5]})["actor_infer.device_mapping"]
    assert "num_nodes: 3" in found.fix


@pytest.mark.parametrize(
    ("changes", "key", "fix"),
    [
        (train(pg_variant="grpo"), "actor_train.pg_variant", "adv_estimator: grpo"),
        (train(pg_variant="dapo"), "actor_train.pg_variant", "pg_clip: [0.2, 0.28]"),
        (
            {"adv_estimator": "ppo"},
            "adv_estimator",
            "actor_train.pg_variant: ppo, with adv_estimator: grpo, or gae for PPO with a critic",
        ),
        ({"actor_infer": {"generating_args": {"stop_strings": [""]}}}, "actor_infer.generating_args.stop_strings", "remove it"),
    ],
)
def test_advice_for_what_newcomers_write(changes, key, fix):
    assert fix in check(**changes)[key].fix


@pytest.mark.parametrize("transport", ["object_store", "nccl"])
def test_devices_that_cannot_be_read_are_one_problem(transport):
    found = check(model_update_transport=transport, actor_train={"device_mapping": "first"})
    assert list(found) == ["actor_train.device_mapping"]
    assert "cannot be read" in found["actor_train.device_mapping"].message


def test_problems_that_a_worker_found_come_whole_to_the_driver():
    error = ConfigError([Problem("gateway_host", "10.0.0.7", "is no address of h0", "10.0.0.0/24"), Problem("seed", 1, "is odd")])
    found = pickle.loads(pickle.dumps(error))
    assert (found.problems, str(found)) == (error.problems, str(error)) and len(str(found).splitlines()) == 2
