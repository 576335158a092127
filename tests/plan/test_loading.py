import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.fields import walk
from roll.core.configs.plain import to_mapping
from roll.core.configs.problems import ConfigError
from roll.core.configs.rlvr import RLVRConfig
from roll.plan.rules.loading import load_config, load_lenient
from roll.plan.rules.other_names import OTHER_NAMES, name_here

REWARD = {"worker_cls": "my.Reward"}


def problems_of(mapping):
    with pytest.raises(ConfigError) as caught:
        load_config(RLVRConfig, mapping)
    return {problem.key: problem for problem in caught.value.problems}


def nested(path, value):
    """{a: {b: value}} for "a.b"."""
    for name in reversed(path.split(".")):
        value = {name.replace("<name>", "math"): value}
    return value


def test_values_reach_their_fields():
    config = load_config(
        RLVRConfig,
        {
            "rollout_batch_size": 4,
            "async_generation_ratio": 1,
            "async_pipeline_depth": 0.5,
            "resume_from_checkpoint": "auto",
            "track_with": ["tensorboard", "wandb"],
            "norm_mean_type": "batch",
            "actor_train": {
                "training_args": {"learning_rate": 0.1},
                "data_args": {"file_name": ["a", "b"]},
                "device_mapping": "0-1",
            },
            "reference": {"device_mapping": [2]},
            "rewards": {"math": {**REWARD, "reward_args": {"anything": [1, {"x": None}]}}},
        },
    )
    assert config.async_generation_ratio == 1.0
    assert type(config.async_generation_ratio) is float
    assert config.actor_train.devices == (0, 1)
    assert config.actor_train.data_args.files == ["a", "b"]
    assert config.reference.devices == (2,)
    assert config.reference.strategy_args.strategy_name == "fsdp2_infer"
    assert config.rewards["math"].reward_args == {"anything": [1, {"x": None}]}
    assert config.rewards["math"].tags("math") == ["math"]
    assert config.actor_infer == RLVRConfig().actor_infer


def test_a_partial_block_keeps_the_defaults_of_its_role():
    config = load_config(RLVRConfig, {"actor_infer": {"strategy_args": {"strategy_config": {"kv_cache_tokens": 4096}}}})
    assert config.actor_infer.strategy_args.strategy_name == "hf_infer"
    assert config.actor_infer.strategy_args.options.kv_cache_tokens == 4096


@pytest.mark.parametrize("text", ["1e-6", "1E-6", "+1.0e-6", "0.000001"])
def test_yaml_1_1_exponents_are_numbers(text):
    config = load_config(RLVRConfig, {"actor_train": {"training_args": {"learning_rate": text}}})
    assert config.actor_train.training_args.learning_rate == 1e-6


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("seed", True, "an integer"),
        ("seed", "3", "an integer"),
        ("seed", 3.0, "an integer"),
        ("pg_clip", True, "a number"),
        ("pg_clip", "much", "a number"),
        ("pg_clip", float("nan"), "finite"),
        ("pg_clip", float("inf"), "finite"),
        ("pg_clip", 0, "> 0"),
        ("pg_clip", 10**400, "a number"),
        ("use_kl_loss", 1, "true or false"),
        ("exp_name", 3, "text"),
        ("max_steps", 0, ">= 1"),
        ("max_steps", None, "an integer"),
        ("async_pipeline_depth", "often", "a number or auto"),
        ("kl_penalty", "full", "one of k1, k2"),
        ("norm_std_type", "steps", "batch, group, running or null"),
        ("track_with", "stdout", "tensorboard"),
        ("track_with", ["wandb", "stdout"], ""),
        ("actor_train", None, "a mapping"),
        ("actor_train", [], "a mapping"),
        ("actor_train.device_mapping", 0.5, "text or an integer or a list"),
        ("actor_train.training_args.adam_beta1", 1.0, "< 1"),
        ("actor_train.data_args.domain_interleave_probs", {"math": 0}, "> 0"),
        ("actor_infer.generating_args.stop_strings", "END", "a list"),
        ("actor_infer.strategy_args.strategy_name", "vlm", "hf_infer"),
        ("actor_infer.strategy_args.strategy_config", {"kv_cache_tokens": "many"}, "an integer"),
    ],
)
def test_wrong_values_are_refused_under_their_own_key(key, value, message):
    (problem,) = problems_of(nested(key, value)).values()
    assert problem.key.startswith(key)
    assert message in problem.message


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("rollout_batchsize", "did you mean rollout_batch_size?"),
        ("actor_train.training_args.warmup_step", "did you mean warmup_steps?"),
        ("actor_train.strategy_args.strategy_config.reshard_after_fwd", "did you mean reshard_after_forward?"),
        ("pg_variant", "it belongs to actor_train.pg_variant"),
        ("actor_infer.pg_variant", "it belongs to actor_train.pg_variant"),
        ("validation.eval_steps", "it belongs to the top level: eval_steps"),
        ("zzzz", "remove it"),
    ],
)
def test_unknown_keys_say_what_to_write(key, fix):
    (problem,) = problems_of(nested(key, 1)).values()
    assert (problem.key, problem.message) == (key, "unknown key")
    assert fix in problem.fix


def test_a_lenient_loading_leaves_out_and_tells_what_a_strict_one_refuses():
    mapping = {
        "seed": 3,
        "max_stepps": 4,
        "kl_penalty": "full",
        "norm_std_type": "steps",
        "actor_train": {"strategy_args": {"strategy_config": {"reshard_after_forward": False, "reshard": 1}}},
        "rewards": {"math": {**REWARD, "speed": 1}},
    }
    config, left_out = load_lenient(RLVRConfig, mapping)
    assert [problem.key for problem in left_out.unknown] == [
        "max_stepps", "actor_train.strategy_args.strategy_config.reshard", "rewards.math.speed",
    ]  # fmt: skip
    assert [problem.key for problem in left_out.not_offered] == ["kl_penalty", "norm_std_type"]
    assert (config.seed, config.max_steps, config.kl_penalty, config.norm_std_type) == (3, 500, "k1", None)
    assert config.actor_train.strategy_args.strategy_config == {"reshard_after_forward": False}
    with pytest.raises(ConfigError) as caught:
        load_lenient(RLVRConfig, {**mapping, "seed": "x", "max_steps": 0})
    assert {problem.key for problem in caught.value.problems} == {"seed", "max_steps"}


def test_all_problems_come_at_once_one_line_each():
    mapping = {"seed": "x", "max_stepps": 3, "pg_clip": -1, "rewards": {"math": {"timeout_s": 0}}, 7: 1}
    found = problems_of(mapping)
    assert set(found) == {"seed", "max_stepps", "pg_clip", "rewards.math.timeout_s", "rewards.math.worker_cls", "7"}
    assert found["rewards.math.worker_cls"].message == "is required"
    with pytest.raises(ConfigError) as caught:
        load_config(RLVRConfig, mapping)
    assert len(str(caught.value).splitlines()) == 6
    assert "max_stepps = 3: unknown key; fix: did you mean max_steps?" in str(caught.value)


# Keys of blocks in a list have an index in their path: see test_policy_losses.py.
IN_LISTS = (".filters.", "flow.stages.", "alarms.")
PATHS = [
    path
    for path, item, _ in walk(RLVRConfig)
    if ("." in path or len(item.name) > 3) and not any(part in path for part in IN_LISTS)
]


@given(st.sampled_from(PATHS), st.data())
def test_a_letter_left_out_of_any_key_is_found(path, data):
    *block, name = path.split(".")
    cut = data.draw(st.integers(0, len(name) - 1))
    typo = name[:cut] + name[cut + 1 :]
    siblings = {other.rpartition(".")[2] for other, _, _ in walk(RLVRConfig) if other.rpartition(".")[0] == ".".join(block)}
    if typo == "" or typo in siblings:
        return
    mapping = nested(".".join([*block, typo]), 1)
    key = ".".join([*block, typo]).replace("<name>", "math")
    problem = problems_of(mapping)[key]
    assert problem.message == "unknown key"
    if len(name) > 3:
        assert "did you mean" in problem.fix


numbers = st.integers(1, 10**6)
valid = st.fixed_dictionaries(
    {},
    optional={
        "rollout_batch_size": numbers,
        "response_length": st.none() | numbers,
        "async_generation_ratio": st.floats(0, 8) | st.integers(0, 8),
        "async_pipeline_depth": st.just("auto") | st.floats(0, 8),
        "resume_from_checkpoint": st.booleans() | st.text(),
        "track_with": st.sampled_from(["none", "wandb"]) | st.lists(st.sampled_from(["wandb", "mlflow"])),
        "tracker_kwargs": st.dictionaries(st.text(), st.integers() | st.text()),
        "norm_mean_type": st.sampled_from(["batch", "group", None]),
        "actor_train": st.fixed_dictionaries(
            {},
            optional={
                "pg_variant": st.sampled_from(["vanilla", "tis"]),
                "device_mapping": st.none() | st.integers(0, 7) | st.lists(st.integers(0, 7)) | st.text(),
                "training_args": st.fixed_dictionaries({"learning_rate": st.floats(1e-9, 1)}),
                "strategy_args": st.fixed_dictionaries({"strategy_config": st.just({"reshard_after_forward": False})}),
            },
        ),
        "reference": st.none() | st.just({}) | st.just({"device_mapping": "0"}),
        "rewards": st.dictionaries(st.text(), st.just(REWARD), max_size=3),
    },
)


@given(valid)
def test_round_trip(mapping):
    config = load_config(RLVRConfig, mapping)
    assert load_config(RLVRConfig, to_mapping(config)) == config


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from([path for path, _, _ in walk(RLVRConfig)]), json, min_size=1, max_size=1))
def test_whatever_is_written_either_loads_or_is_refused_as_a_config_error(entry):
    ((path, value),) = entry.items()
    mapping = nested(path, value)
    try:
        config = load_config(RLVRConfig, mapping)
    except ConfigError as error:
        assert error.problems
    else:
        assert repr(load_config(RLVRConfig, to_mapping(config))) == repr(config)


def test_mutable_defaults_are_not_shared():
    first, second = RLVRConfig(), RLVRConfig()
    first.tracker_kwargs["x"] = 1
    assert second.tracker_kwargs == {}


def test_every_key_has_a_meaning():
    for path, item, _ in walk(RLVRConfig):
        assert item.metadata["help"].endswith((".", "?")), path


def test_configurations_load_without_heavy_packages():
    code = (
        "import sys, roll.plan.rules.validation, roll.plan.rules.loading, roll.core.configs.derived;"
        "import roll.compat.roll.translation;"
        "print({'torch', 'ray', 'transformers', 'hydra', 'omegaconf', 'yaml'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(("theirs", "ours"), OTHER_NAMES.items(), ids=OTHER_NAMES)
def test_a_name_that_others_use_leads_to_a_key_that_is_there(theirs, ours):
    known = {path for path, _, _ in walk(RLVRConfig)}
    assert theirs not in known
    key = re.split(r"[^\w.<>]", ours)[0].replace("<domain>", "<name>")
    assert key in known or key == "device_mapping" or key.endswith(".strategy_config.gpu_memory_utilization")


@pytest.mark.parametrize("theirs", OTHER_NAMES)
def test_in_an_agentic_run_it_leads_to_a_key_of_such_runs(theirs):
    known = {path for path, _, _ in walk(AgenticConfig)}
    assert theirs not in known
    key = re.split(r"[^\w.<>]", name_here(theirs, known))[0]
    assert key in known or theirs in ("mask_truncated_completions", "vllm_mode", "vllm_gpu_memory_utilization")


def test_runs_of_two_kinds_without_a_name_have_folders_of_their_own():
    named = [field.default for cls in (RLVRConfig, AgenticConfig) for path, field, _ in walk(cls) if path == "exp_name"]
    assert named == ["rlvr", "agentic"]


def test_blocks_of_verl_and_names_of_trl_are_told_what_they_are_here():
    theirs = {"actor_rollout_ref": {}, "algorithm": {}, "trainer": {}, "data": {}, "model_name_or_path": "m", "dataset_name": "d"}
    with pytest.raises(ConfigError) as raised:
        load_config(RLVRConfig, theirs)
    fixes = {problem.key: problem.fix for problem in raised.value.problems}
    assert fixes.keys() == theirs.keys() and all(fix.startswith("here it is ") for fix in fixes.values())
