"""Trinity-RFT's YAML files: what each key becomes, and that nothing is guessed."""

import contextlib
import copy
import itertools
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roll.compat.roll.rule import write_at
from roll.compat.roll.translation import has_field
from roll.compat.trinity.keys import BLOCKS, LEFT_OUT, NEEDED, RULES, SCALARS
from roll.compat.trinity.translation import TRINITY
from roll.core.configs.rlvr import RLVRConfig
from roll.core.distributed.machine import Machine
from roll.plan.contract import contract
from roll.plan.rules.validation import check_config
from roll.prepare.check import planned_devices
from roll.prepare.compose import load

FOLDER = Path(__file__).parents[1] / "configs" / "trinity_examples"
"""The asynchronous example of Trinity-RFT's documentation, as printed there."""
NAMES = ("trainer", "explorer", "explorer_new")
MACHINE = Machine(cpus=8, memory=1 << 34, accelerators=())


@pytest.fixture
def config():
    return {name: load(FOLDER, name, [], compat=True)[0] for name in NAMES}


def written(**changes):
    """trainer.yaml with other values, by dotted path with two underscores; None removes the key."""
    mapping = yaml.safe_load((FOLDER / "trainer.yaml").read_text())
    for path, value in changes.items():
        *blocks, last = path.split("__")
        block = mapping
        for name in blocks:
            block = block.setdefault(name, {})
        block.pop(last, None) if value is None else block.update({last: value})
    return mapping


def notes(kind, **changes):
    return {note.key: note.message for note in getattr(TRINITY.translate(written(**changes)), kind)}


def test_devices_that_divide_tokens_share_a_batch_and_its_budget():
    """Pairs have twice the batch, and twice the tokens of a device."""
    alone, pairs = (
        TRINITY.translate(written(trainer__ulysses_sequence_parallel_size=size, trainer__max_token_len_per_gpu=1000)).mapping
        for size in (1, 2)
    )
    assert [each["actor_train"]["model_args"]["ulysses_size"] for each in (alone, pairs)] == [1, 2]
    assert pairs["reference"]["model_args"]["ulysses_size"] == 2
    assert [each["actor_train"]["max_tokens_per_microbatch_in_train"] for each in (alone, pairs)] == [1000, 2000]
    batches = [each["actor_train"]["training_args"]["per_device_train_batch_size"] for each in (alone, pairs)]
    assert batches[1] == 2 * batches[0] > 0


@pytest.mark.parametrize("name", NAMES)
def test_the_documents_files_have_no_problem(name):
    config, report = load(FOLDER, name, [])
    assert check_config(config, planned_devices(config, MACHINE)) == []
    assert (report.lacking, report.unknown, report.variables) == ([], [], [])
    told = {note.key for note in [*report.aliased, *report.without_effect]}
    assert told >= {path for path in _leaves(yaml.safe_load((FOLDER / f"{name}.yaml").read_text()))}
    assert all(note.where or note.message.startswith("Trinity's default") for note in report.aliased)


def _leaves(block, above=""):
    for name, value in block.items():
        yield from _leaves(value, f"{above}{name}.") if isinstance(value, dict) else [f"{above}{name}"]


def test_the_documents_files_are_one_run(config):
    trainer, explorer, new = (config[name] for name in NAMES)
    assert {each.total_epochs for each in config.values()} == {1.0} and trainer.in_steps(7473).max_steps == 116
    assert contract(trainer) == contract(explorer) == contract(new)
    assert trainer.groups_address == explorer.groups_address == new.groups_address == "sqlite:///gsm8k.db"
    assert trainer.shared_dir == explorer.shared_dir == new.shared_dir == "checkpoints/<project_name>/<experiment_name>"
    assert [each.mode for each in config.values()] == ["train", "explore", "explore"]
    assert (explorer.explorer_name, new.explorer_name) == ("explorer", "explorer_new")


def test_what_the_documents_trainer_becomes(config):
    trainer = config["trainer"]
    assert (trainer.rollout_batch_size, trainer.group_size, trainer.lengths()) == (64, 8, (1024, 1024, 2048))
    assert (trainer.weight_push_interval, trainer.async_generation_ratio, trainer.async_pipeline_depth) == (10, 9, 9)
    assert (trainer.model_update_transport, trainer.resume_from_checkpoint) == ("checkpoint_dir", "auto")
    assert (trainer.adv_estimator, trainer.loss_agg_mode, trainer.old_logprobs) == ("grpo", "token-mean", "bypass")
    assert (trainer.use_kl_loss, trainer.kl_loss_type, trainer.kl_loss_coef, trainer.dual_clip_c) == (True, "k2", 0.001, 3.0)
    assert trainer.actor_train.devices == trainer.reference.devices == (0, 1, 2, 3)
    training = trainer.actor_train.training_args
    assert training.per_device_train_batch_size * training.gradient_accumulation_steps * 4 == 512, "one optimiser step"
    assert (training.learning_rate, training.lr_scheduler_type, training.weight_decay) == (1e-6, "constant", 0.01)
    assert (trainer.max_grad_norm, trainer.actor_train.max_tokens_per_microbatch_in_train) == (1.0, 16384)
    assert trainer.pretrain == "Qwen/Qwen2.5-1.5B-Instruct"


def test_what_the_documents_explorers_become(config):
    explorer, new = config["explorer"], config["explorer_new"]
    assert (explorer.actor_infer.devices, new.actor_infer.devices) == (tuple(range(4)), tuple(range(8)))
    assert explorer.actor_infer.strategy_args.strategy_name == "vllm"
    assert explorer.max_running_requests == 64
    data = explorer.actor_train.data_args
    assert (data.path, data.subset_name, data.split) == ("openai/gsm8k", "main", "train") and data.files == []
    assert (data.prompt, data.ground_truth) == ("question", "answer")
    assert list(explorer.rewards) == ["gsm8k"] and explorer.rewards["gsm8k"].worker_cls.endswith("MathRuleRewardWorker")


def test_a_number_of_steps_takes_the_place_of_the_epochs():
    config, report = load(FOLDER, "explorer", ["buffer.total_steps=116"])
    assert (config.max_steps, config.total_epochs) == (116, None)
    assert "buffer.total_epochs" in {note.key for note in report.without_effect}


@pytest.mark.parametrize(
    ("changes", "key", "says"),
    [
        ({"mode": "serve"}, "mode", "explore, train or both"),
        ({"algorithm__algorithm_type": "sft"}, "algorithm.algorithm_type", "adv_estimator"),
        ({"algorithm__algorithm_type": None}, "algorithm.algorithm_type", "adv_estimator"),
        ({"algorithm__repeat_times": None}, "algorithm.repeat_times", "write it"),
        ({"algorithm__policy_loss_fn": "sapo"}, "algorithm.policy_loss_fn", "pg_variant"),
        ({"algorithm__sample_strategy": "mix"}, "algorithm.sample_strategy", "order of admission"),
        ({"synchronizer__sync_method": "rdma"}, "synchronizer.sync_method", "checkpoint, memory or nccl"),
        ({"synchronizer__sync_style": "explorer_driven"}, "synchronizer.sync_style", "async_generation_ratio"),
        ({"buffer__batch_size": 32}, "buffer.train_batch_size", "write the product"),
        (
            {"buffer__trainer_input__experience_buffer__replay_buffer": {"enable": True}},
            "buffer.trainer_input.experience_buffer.replay_buffer.enable",
            "remove it",
        ),
        (
            {"buffer__trainer_input__experience_buffer__path": "mysql://h/d"},
            "buffer.trainer_input.experience_buffer.path",
            "groups_database",
        ),
        (
            {"buffer__explorer_input__taskset__default_workflow_type": "alfworld_workflow"},
            "buffer.explorer_input.taskset.default_workflow_type",
            "grade",
        ),
        ({"trainer__trainer_strategy": "megatron"}, "trainer.trainer_strategy", "megatron_train"),
        ({"trainer__grad_clipp": 1.0}, "trainer.grad_clipp", "remove it"),
        ({"service__data_juicer__port": 5005}, "service.data_juicer.port", "remove it"),
        ({"cluster__gpu_per_node": 0}, "cluster.gpu_per_node", "how many"),
        ({"cluster__gpu_per_node": "four"}, "cluster.gpu_per_node", "how many"),
        ({"synchronizer__sync_interval": 0}, "synchronizer.sync_interval", "no value"),
    ],
)
def test_what_is_not_here_is_refused_by_name_with_what_to_do(changes, key, says):
    assert says in notes("lacking", **changes)[key]


def test_no_key_is_read_as_an_unrelated_one():
    made = TRINITY.translate(written(trainer__learning_rate=1, explorer__batch_size=3, model__rope_theta=5))
    assert {"trainer.learning_rate", "explorer.batch_size", "model.rope_theta"} <= {note.key for note in made.lacking}
    assert not set(made.mapping) & {*BLOCKS, *SCALARS} - {"mode"}


def test_a_key_of_this_project_counts_where_both_say_something():
    made = TRINITY.translate(written() | {"rollout_batch_size": 128, "actor_train": {"device_mapping": "2"}})
    assert made.mapping["rollout_batch_size"] == 128 and made.mapping["actor_train"]["device_mapping"] == "2"
    told = {note.key: note.message for note in made.aliased}
    assert "rollout_batch_size is given, too, and counts" in told["buffer.train_batch_size"]


def test_in_one_process_engines_have_the_last_devices():
    made = TRINITY.translate(written(mode="both", cluster__gpu_per_node=8, explorer__rollout_model={"engine_num": 3})).mapping
    assert made["actor_train"]["device_mapping"] == [0, 1, 2, 3, 4]
    assert made["actor_infer"]["device_mapping"] == [5, 6, 7]
    assert "groups_database" not in made and made["mode"] == "both"


def test_an_offset_lets_explorers_run_further_ahead():
    made = TRINITY.translate(written(synchronizer__sync_interval=1, synchronizer__sync_offset=1)).mapping
    assert (made["weight_push_interval"], made["async_generation_ratio"], made["async_pipeline_depth"]) == (1, 1, 1)


@pytest.mark.parametrize(
    ("method", "mode", "transport"),
    [
        ("checkpoint", "train", "checkpoint_dir"),
        ("memory", "explore", "object_store"),
        ("memory", "both", "object_store"),
        ("nccl", "train", "checkpoint_dir"),
        ("nccl", "both", "collective"),
    ],
)
def test_the_ways_of_weights_have_names_here(method, mode, transport):
    made = TRINITY.translate(written(mode=mode, synchronizer__sync_method=method))
    assert made.mapping["model_update_transport"] == transport and made.mapping["mode"] == mode


def test_other_files_are_not_trinitys():
    assert not TRINITY.owns({"explorer": 1, "model": {"a": 1}, "algorithm": {}})
    assert TRINITY.owns({"synchronizer": {}})


def test_null_is_the_same_as_leaving_a_key_out():
    made = TRINITY.translate(written() | {"name": None, "checkpoint_root_dir": None})
    assert made.mapping["exp_name"] == "rft" and made.mapping["output_dir"] == "./checkpoints/<project_name>"


def test_a_task_sets_sampling_counts_before_the_models():
    made = TRINITY.translate(written(model__temperature=0.5, model__top_p=0.9))
    assert made.mapping["actor_infer"]["generating_args"] == {"temperature": 1.0, "top_p": 0.9}


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 9), st.floats(), st.text(max_size=3), st.just([1]), st.just({"a": 1})
)


@example({"buffer.train_batch_size": ""})
@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted({rule.path for rule in RULES})), ANYTHING, max_size=12))
def test_whatever_is_written_has_a_note_and_nothing_of_trinitys_is_left(values):
    mapping = {"buffer": {}}
    for path, value in values.items():
        write_at(mapping, tuple(path.split(".")), value)
    made = TRINITY.translate(mapping)
    told = {note.key for note in [*made.aliased, *made.without_effect, *made.lacking]}
    assert {key for key in told if key.startswith(tuple(values))} or not values
    assert not set(made.mapping) & {*BLOCKS, *SCALARS} - {"mode"}


def test_a_translation_leaves_the_file_alone():
    mapping = written()
    before = copy.deepcopy(mapping)
    TRINITY.translate(mapping)
    assert mapping == before


def test_every_key_that_rules_write_is_one():
    """Each rule is tried on values that it is about; what it writes has a field."""
    more = {"explorer__rollout_model": {"engine_num": 1}, "algorithm__repeat_times": 1}
    files = [written(mode=mode, synchronizer__sync_offset=2, **more) for mode in ("train", "explore")]
    values = [
        True,
        False,
        1,
        2,
        "x",
        "train",
        "both",
        "grpo",
        "checkpoint",
        "sqlite:///x",
        "math_workflow",
        "vllm",
        "fsdp",
        512,
        None,
    ]
    tried = set()
    for rule, file, value in itertools.product(RULES, files, values):
        if rule.about(value, file):
            with contextlib.suppress(TypeError, AttributeError):  # a number where text is meant, or the other way round
                targets = rule.to(value, file)
                tried.add(rule.path)
                assert all(has_field(RLVRConfig, tuple(target.split("."))) for target in targets), (rule.path, targets)
    assert tried >= {rule.path for rule in RULES if rule.kind == "alias"}


def test_defaults_and_needed_keys_have_rules():
    paths = {rule.path for rule in RULES}
    assert {*LEFT_OUT, *NEEDED} <= paths
    assert {path.split(".")[0] for path in paths} <= {*BLOCKS, *SCALARS}
