"""verl's settings, of start scripts and YAML files: what each key becomes, and that nothing is guessed."""

import contextlib
import copy
import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.compat.roll.rule import write_at
from roll.compat.roll.translation import has_field
from roll.compat.verl.translation import BLOCKS, RULES, VERL
from roll.core.configs.problems import ConfigError
from roll.core.configs.rlvr import RLVRConfig
from roll.core.distributed.machine import Machine
from roll.plan.rules.validation import check_config
from roll.prepare.check import planned_devices
from roll.prepare.compose import load

FOLDER = Path(__file__).parents[1] / "configs" / "verl_examples"
MACHINE = Machine(cpus=8, memory=1 << 34, accelerators=())
SCRIPTS = ("grpo.sh", "ppo.sh", "fully_async.sh", "one_step_off.sh", "changed")
ACTOR = "actor_rollout_ref.actor"


def loaded(name, *overrides, **keywords):
    return load(FOLDER, name, [*overrides], **keywords)[0]


def settings_of(**changes):
    """A small file, with other values by dotted path with two underscores; None removes the key."""
    mapping = {
        "data": {"train_files": "a.parquet", "train_batch_size": 64},
        "algorithm": {"adv_estimator": "grpo"},
        "actor_rollout_ref": {
            "model": {"path": "m"},
            "actor": {"ppo_mini_batch_size": 32, "use_dynamic_bsz": True},
            "rollout": {"name": "hf", "n": 4},
        },
        "trainer": {"n_gpus_per_node": 2, "logger": ["console"]},
    }
    for path, value in changes.items():
        *blocks, last = (
            path.replace("actor__", "actor_rollout_ref__actor__", 1).split("__")
            if path.startswith("actor__")
            else path.split("__")
        )
        block = mapping
        for name in blocks:
            block = block.setdefault(name, {})
        block.pop(last, None) if value is None else block.update({last: value})
    return mapping


def made(**changes):
    return VERL.translate(settings_of(**changes))


def notes(kind, **changes):
    return {note.key: note.message for note in getattr(made(**changes), kind)}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_examples_have_no_problem(name):
    config, report = load(FOLDER, name, [])
    assert check_config(config, planned_devices(config, MACHINE)) == []
    assert (report.lacking, report.unknown, report.variables) == ([], [], [])
    assert all(note.where or note.message.startswith(("verl's default", "null")) for note in report.aliased)


def test_a_script_of_grpo():
    config, report = load(FOLDER, "grpo.sh", [])
    assert (config.exp_name, config.output_dir) == ("first", "checkpoints/sums")
    assert (config.rollout_batch_size, config.group_size, config.lengths()) == (64, 5, (512, 1024, 1536))
    assert config.actor_train.data_args.files == ["data/train.parquet", "data/more.parquet"]
    data = config.actor_train.data_args
    assert (data.messages, data.ground_truth, data.tag) == ("prompt", "reward_model.ground_truth", "data_source")
    assert config.validation.data_args.files == ["data/test.parquet"] and config.eval_steps == 5
    assert config.validation.data_args.tag == "data_source"
    assert (config.validation.generating_args.temperature, config.validation.generating_args.num_return_sequences) == (0, 1)
    assert (config.adv_estimator, config.pg_clip, config.dual_clip_c) == ("grpo", [0.2, 0.2], 3.0)
    assert (config.loss_agg_mode, config.old_logprobs, config.async_generation_ratio) == ("token-mean", "recompute", 0)
    assert (config.use_kl_loss, config.kl_loss_coef, config.kl_loss_type, config.kl_loss_clamp) == (True, 0.002, "k3", 10.0)
    training = config.actor_train.training_args
    assert (training.learning_rate, training.lr_scheduler_type, training.weight_decay) == (1e-6, "constant", 0.01)
    assert training.per_device_train_batch_size * 8 == 32 * 5, "an optimiser step"
    assert config.actor_train.max_tokens_per_microbatch_in_train == 4 * 1536
    assert config.actor_train.model_args.disable_gradient_checkpointing is False
    assert config.actor_train.strategy_args.strategy_name == "fsdp2_train"
    engine = config.actor_infer.strategy_args
    assert engine.strategy_name == "vllm"
    assert {"tensor_parallel_size": 2, "gpu_memory_utilization": 0.6}.items() <= engine.strategy_config.items()
    everywhere = tuple(range(8))
    assert config.actor_train.devices == config.actor_infer.devices == config.reference.devices == everywhere
    assert (config.track_with, config.tracker_kwargs) == (["wandb"], {"wandb": {"project": "sums"}})
    assert (config.save_steps, config.total_epochs, config.resume_from_checkpoint) == (20, 15, "auto")
    assert list(config.rewards) == ["score"] and "openai/gsm8k" in config.rewards["score"].tag_included
    assert report.file.endswith("grpo.sh")
    where = {note.key: note.where for note in report.aliased}
    assert where["data.train_batch_size"] == "grpo.sh:9" and where["trainer.total_epochs"] == "grpo.sh:36"


def test_variables_of_the_environment_and_overrides_count(monkeypatch):
    monkeypatch.setenv("DATA", "elsewhere")
    config = loaded("grpo.sh", "data.train_batch_size=128", "max_steps=3", "actor_rollout_ref.actor.use_kl_loss=False")
    assert config.actor_train.data_args.files[0] == "elsewhere/train.parquet"
    assert (config.rollout_batch_size, config.max_steps, config.total_epochs, config.use_kl_loss) == (128, 3, None, False)
    assert config.reference is None


def test_a_script_of_ppo(monkeypatch):
    config = loaded("ppo.sh")
    assert (config.adv_estimator, config.gamma, config.lambd, config.whiten_advantages) == ("gae", 1.0, 1.0, True)
    assert (config.value_clip, config.critic.training_args.learning_rate) == (0.5, 2e-5)
    assert (config.critic.training_args.lr_scheduler_type, config.critic.training_args.weight_decay) == ("constant", 0.01)
    assert config.critic.model_args.model_name_or_path == "owner/model"
    assert (config.group_size, config.rollout_batch_size, config.response_length) == (1, 1024, 2048)
    assert config.actor_train.max_tokens_per_microbatch_in_train == 16384
    assert config.critic.max_tokens_per_microbatch_in_train == 32768
    assert config.track_with == "none" and config.validation is None
    monkeypatch.setenv("BACKEND", "hf")
    assert loaded("ppo.sh").actor_infer.strategy_args.strategy_name == "hf_infer"


def test_a_stream_of_rollouts():
    config = loaded("fully_async.sh")
    assert (config.rollout_batch_size, config.group_size) == (64, 16)
    assert config.weight_push_interval == 4
    assert config.async_generation_ratio == config.async_pipeline_depth == 1.5 * 4 - 1
    assert (config.weight_update_mode, config.old_logprobs) == ("interrupt", "bypass")
    assert config.max_steps == 512 * 100 // 64 and config.save_steps == 2 * 4
    assert (config.actor_train.devices, config.actor_infer.devices) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert config.num_gpus_per_node == 8 and config.num_nodes == 1
    assert config.pg_clip == [0.2, 0.28] and config.dual_clip_c == 10.0
    shaping = config.rewards["score"].shaping
    assert (shaping.overlong_buffer, shaping.overlong_penalty) == (128, 0.5)


def test_one_step_off_policy():
    config = loaded("one_step_off.sh")
    assert (config.async_generation_ratio, config.old_logprobs) == (1, "bypass")
    assert (config.actor_train.devices, config.actor_infer.devices) == (tuple(range(6)), (6, 7))
    assert config.actor_train.training_args.per_device_train_batch_size == 48 * 5 // 6
    engine = config.actor_infer.strategy_args
    assert engine.strategy_name == "sglang" and engine.strategy_config["tensor_parallel_size"] == 2


def test_a_file_that_names_what_is_changed():
    config = loaded("changed")
    assert (config.adv_estimator, config.actor_train.pg_variant) == ("dr_grpo", "gspo")
    assert (config.actor_train.gspo_clip_low, config.actor_train.gspo_clip_high) == (0.0003, 0.0004)
    assert (config.dual_clip_c, config.loss_agg_mode) == (None, "seq-mean-token-mean"), "as gspo is there, whatever is written"
    assert config.actor_infer.generating_args.temperature == 0.9
    assert (config.max_steps, config.output_dir, config.exp_name) == (7, "out/p", "e")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("X=$(hostname)\npython3 -m verl.trainer.main_ppo data.train_files=$X\n", 2, "$(hostname) is a command"),
        ("python3 -m verl.trainer.main_ppo \\\n trainer.nnodes=${SLURM_NODES_OF_MINE}\n", 2, "SLURM_NODES_OF_MINE"),
        ("python3 -m verl.trainer.main_ppo a.b=1\npython3 -m verl.trainer.main_ppo a.b=2\n", 2, "2 times"),
        ("python3 -m verl.trainer.sft_trainer data.x=1\n", 1, "does not start"),
        ("python3 -m verl.trainer.main_ppo --config-name=mine a.b=1\n", 1, "mine.yaml"),
        ("python3 -m verl.trainer.main_ppo --verbose\n", 1, "--verbose"),
    ],
)
def test_a_script_that_cannot_be_read_is_one_error(text, line, says, tmp_path):
    (tmp_path / "run.sh").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "run.sh", [])
    (problem,) = caught.value.problems
    assert f"run.sh:{line}" in problem.where or f"'run.sh': line {line}: " in str(problem)
    assert says in str(problem) and problem.fix


def test_what_is_unknown_counts_where_an_override_takes_its_place(tmp_path):
    script = (FOLDER / "grpo.sh").read_text().replace("trainer.nnodes=1", "trainer.nnodes=$NODES_OF_MINE")
    (tmp_path / "run.sh").write_text(script)
    with pytest.raises(ConfigError, match="NODES_OF_MINE"):
        load(tmp_path, "run.sh", [])
    assert load(tmp_path, "run.sh", ["trainer.nnodes=2"])[0].num_nodes == 2


def test_a_scripts_own_file_lies_beside_it(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "mine.yaml").write_text((FOLDER / "changed.yaml").read_text())
    (tmp_path / "run.sh").write_text("python3 -m verl.trainer.main_ppo --config-path=config --config-name mine data.seed=5\n")
    config = load(tmp_path, "run.sh", [])[0]
    assert (config.seed, config.exp_name) == (5, "e")


@pytest.mark.parametrize(
    ("changes", "key", "says"),
    [
        ({"algorithm__adv_estimator": "grpo_passk"}, "algorithm.adv_estimator", "adv_estimator"),
        ({"actor__policy_loss": {"loss_mode": "clip_cov"}}, f"{ACTOR}.policy_loss.loss_mode", "pg_variant"),
        ({"actor__clip_ratio": 0.1}, f"{ACTOR}.clip_ratio", "clip_ratio_low and clip_ratio_high"),
        ({"actor__loss_agg_mode": "token-sum"}, f"{ACTOR}.loss_agg_mode", "token-mean"),
        ({"actor__strategy": "veomni"}, f"{ACTOR}.strategy", "megatron"),
        ({"actor__ppo_mini_batch_size": 3, "trainer__n_gpus_per_node": 8}, f"{ACTOR}.ppo_mini_batch_size", "a multiple"),
        ({"actor_rollout_ref__rollout": {"name": "trtllm"}}, "actor_rollout_ref.rollout.name", "vllm"),
        (
            {"actor_rollout_ref__rollout": {"name": "hf", "multi_turn": {"enable": True}}},
            "actor_rollout_ref.rollout.multi_turn",
            "agentic",
        ),
        ({"reward_model": {"enable": True, "model": {"path": "x"}}}, "reward_model.enable", "RewardModelWorker"),
        ({"reward_model": {"sandbox_fusion": {"url": "http://a"}}}, "reward_model.sandbox_fusion", "CodeSandboxRewardWorker"),
        ({"data__train_files": "hdfs://a/b.parquet"}, "data.train_files", "of this machine"),
        ({"data__train_files": None}, "data.train_files", "is left out"),
        ({"trainer__logger": ["clearml"]}, "trainer.logger", "wandb"),
        ({"trainer__v1": {"trainer_mode": "separate_async"}}, "trainer.v1.trainer_mode", "async_generation_ratio"),
        (
            {"rollout": {"nnodes": 2, "n_gpus_per_node": 4}, "trainer__n_gpus_per_node": 6},
            "trainer.n_gpus_per_node",
            "device_mapping",
        ),
        ({"distillation": {"enabled": True}}, "distillation", "teachers"),
        ({"actor__ppo_minibatch_size": 3}, f"{ACTOR}.ppo_minibatch_size", f"did you mean {ACTOR}.ppo_mini_batch_size?"),
        ({"trainer__total_epoch": 3}, "trainer.total_epoch", "did you mean trainer.total_epochs?"),
    ],
)
def test_what_is_not_here_is_refused_by_name_with_what_to_do(changes, key, says):
    assert says in notes("lacking", **changes)[key]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"algorithm__use_kl_in_reward": True, "algorithm__kl_penalty": "low_var_kl"},
         {"add_token_level_kl": True, "kl_penalty": "k3", "init_kl_coef": 0.001}),
        ({"algorithm__use_kl_in_reward": True, "algorithm__kl_ctrl": {"type": "adaptive", "target_kl": 0.2}},
         {"target_kl": 0.2, "kl_horizon": 10000}),
        ({"actor__use_kl_loss": True, "actor__kl_loss_type": "kl+"}, {"kl_loss_type": "k1+"}),
        ({"algorithm__rollout_correction": {"bypass_mode": True}}, {"old_logprobs": "bypass"}),
        ({"algorithm__filter_groups": {"enable": True, "metric": "acc", "max_num_gen_batches": 10}}, {"max_dropped_batches": 10}),
        ({"trainer__resume_mode": "disable"}, {"resume_from_checkpoint": False}),
        ({"trainer__save_freq": -1}, {"save_steps": 0}),
        ({"actor__grad_clip": 0.5}, {"max_grad_norm": 0.5}),
        ({"data__val_max_samples": 9}, {"val_batch_size": 9}),
    ],
)  # fmt: skip
def test_values_have_their_like_here(changes, expected):
    assert expected.items() <= made(**changes).mapping.items()


def test_weights_for_the_distance_to_the_sampler():
    correction = {
        "rollout_is": "sequence",
        "rollout_is_threshold": 3.0,
        "rollout_rs": "seq_mean_k1",
        "rollout_rs_threshold": "0.5_2.0",
    }
    found = made(algorithm__rollout_correction=correction).mapping["train_infer_correction"]
    assert found["is_weight"] == {"enabled": True, "weight_type": "sequence", "mode": "truncate", "upper_bound": 3.0}
    assert found["filters"] == [{"enabled": True, "agg_type": "geometric", "ratio_low": 0.5, "ratio_high": 2.0}]
    masks = made(algorithm__rollout_correction={"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"})
    weight = masks.mapping["train_infer_correction"]["is_weight"]
    assert (weight["mode"], weight["lower_bound"], weight["upper_bound"]) == ("mask", 0.5, 5.0)


def test_adapters():
    changes = {"lora_rank": 32, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], "path": "m"}
    args = made(actor_rollout_ref__model=changes).mapping["actor_train"]["model_args"]
    assert (args["lora_rank"], args["lora_alpha"], args["lora_target"]) == (32, 16, "q_proj,v_proj")
    off = made(actor_rollout_ref__model={**changes, "lora_rank": 0}).mapping["actor_train"]["model_args"]
    assert not {"lora_rank", "lora_alpha", "lora_target"} & off.keys()


def test_megatron_and_its_reference():
    sizes = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1, "param_offload": True}
    mapping = made(model_engine="megatron", actor__megatron=sizes, actor__use_kl_loss=True, trainer__n_gpus_per_node=8).mapping
    actor, reference = mapping["actor_train"], mapping["reference"]
    assert (actor["strategy_args"]["strategy_name"], reference["strategy_args"]["strategy_name"]) == (
        "megatron_train",
        "megatron_infer",
    )
    assert actor["strategy_args"]["strategy_config"]["tensor_model_parallel_size"] == 2
    assert reference["strategy_args"]["strategy_config"]["tensor_model_parallel_size"] == 2
    assert actor["strategy_args"]["strategy_config"]["sequence_parallel"] is True
    assert actor["training_args"]["per_device_train_batch_size"] == 32 * 4 // 4


def test_a_batch_of_ranks_that_divide_tokens():
    alone, pairs = (made(actor__ulysses_sequence_parallel_size=size).mapping["actor_train"] for size in (1, 2))
    assert pairs["model_args"]["ulysses_size"] == 2
    assert pairs["training_args"]["per_device_train_batch_size"] == 2 * alone["training_args"]["per_device_train_batch_size"]
    assert pairs["max_tokens_per_microbatch_in_train"] == 2 * alone["max_tokens_per_microbatch_in_train"] == 2 * 16384


def test_a_reward_function_of_the_users_own():
    mapping = made(custom_reward_function={"path": "scores.py", "name": "judge", "reward_kwargs": {"k": 2}}).mapping
    reward = mapping["rewards"]["score"]
    assert reward["worker_cls"].endswith("ScoreRewardWorker")
    assert reward["reward_args"] == {"path": "scores.py", "name": "judge", "source": "data_source", "reward_kwargs": {"k": 2}}
    data = mapping["actor_train"]["data_args"]
    assert data["default_tag"] == "score" and "tag_included" not in reward


def test_keys_of_this_project_count_where_both_say_something():
    translated = VERL.translate(settings_of() | {"rollout_batch_size": 128, "weight_update_rolling": True})
    assert translated.mapping["rollout_batch_size"] == 128 and translated.mapping["weight_update_rolling"] is True
    told = {note.key: note.message for note in translated.aliased}
    assert "rollout_batch_size is given, too, and counts" in told["data.train_batch_size"]


def test_other_files_are_not_verls():
    assert not VERL.owns({"trainer": {"async_pipeline": True}, "actor_rollout_ref": {"rollout": {"enable_dual_buffer": True}}})
    assert not VERL.owns({"critic": {}, "actor_train": {}}) and VERL.owns({"data": {"train_files": "a"}})


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 9),
    st.floats(),
    st.text(max_size=3),
    st.just([1]),
    st.just({"a": 1}),
    st.just(["a"]),
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted({rule.path for rule in RULES})), ANYTHING, max_size=12))
def test_whatever_is_written_has_a_note_and_nothing_of_verls_is_left(values):
    mapping = {"data": {"train_files": "a"}}
    for path, value in values.items():
        write_at(mapping, tuple(path.split(".")), value)
    translated = VERL.translate(mapping)
    told = {note.key for note in [*translated.aliased, *translated.without_effect, *translated.lacking]}
    assert {key for key in told if key.startswith(tuple(values))} or not values
    theirs = {block for block in BLOCKS if isinstance(mapping.get(block), dict | None)}
    assert not translated.mapping.keys() & theirs - {"critic", "rollout", "distillation"}


def test_a_translation_leaves_the_file_alone():
    mapping = settings_of()
    before = copy.deepcopy(mapping)
    VERL.translate(mapping)
    assert mapping == before


def test_every_key_that_rules_write_is_one():
    """Each rule is tried on values that it is about; what it writes has a field."""
    both = {"algorithm__use_kl_in_reward": True, "actor__use_kl_loss": True, "data__val_files": "v", "trainer__test_freq": 2}
    files = [
        settings_of(**both, algorithm__adv_estimator="gae"),
        settings_of(**both, model_engine="megatron", algorithm__adv_estimator="gae", custom_reward_function={"path": "a.py"}),
        settings_of(
            async_training={}, actor_rollout_ref__model={"path": "m", "lora_rank": 2}, algorithm__filter_groups={"enable": True}
        ),
        settings_of(actor__policy_loss={"loss_mode": "sapo"}, trainer__resume_from_path="p"),
        settings_of(actor_rollout_ref__rollout={"name": "vllm"}),
        settings_of(
            actor_rollout_ref__rollout={"name": "sglang"},
            algorithm__kl_ctrl={"type": "adaptive"},
            algorithm__use_kl_in_reward=True,
        ),
        settings_of(algorithm__rollout_correction={"rollout_rs_threshold": 2.0}, actor__use_dynamic_bsz=False),
    ]
    values = [
        True,
        False,
        1,
        2,
        -1,
        "x",
        "grpo",
        "gae",
        "vllm",
        "hf",
        "fsdp",
        "megatron",
        "vanilla",
        "token",
        "token_k1",
        "auto",
        "disable",
        "resume_path",
        "kl",
        "constant",
        "bfloat16",
        "token-mean",
        "adaptive",
        "error",
        ["console"],
        [0.9, 0.95],
        {},
        {"a": 1},
        0.5,
        None,
    ]
    tried = set()
    for rule, file, value in itertools.product(RULES, files, values):
        if rule.about(value, file):
            with contextlib.suppress(TypeError, AttributeError, KeyError, AssertionError):  # a number where text is meant
                targets = rule.to(value, file)
                tried.add(rule.path)
                assert [each for each in targets if not has_field(RLVRConfig, tuple(each.split(".")))] == [], rule.path
    assert tried >= {rule.path for rule in RULES if rule.kind == "alias"}
