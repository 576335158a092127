"""ROLL's files of SFT and DPO."""

import pytest
import yaml

from roll.compat.roll.pipelines import pipeline_of
from roll.core.configs.problems import ConfigError
from roll.plan.rules.validation import check_config
from roll.prepare.compose import load

SFT = """
exp_name: qwen2.5-7B-sft-config
num_gpus_per_node: 8
save_steps: 500
pretrain: Qwen/Qwen2.5-7B
sequence_length: 2048
system_key: system
query_key: input
response_key: answer
global_template: qwen2_5
checkpoint_config: {type: file_system, output_dir: /data/checkpoints}
sft_train:
  model_args: {attn_implementation: sdpa, disable_gradient_checkpointing: false, dtype: bf16}
  training_args:
    {num_train_epochs: 3, learning_rate: 1.0e-5, weight_decay: 0, per_device_train_batch_size: 2, gradient_accumulation_steps: 4}
  data_args: {file_name: [data/sft.jsonl], template: qwen2_5, preprocessing_num_workers: 4}
  strategy_args:
    strategy_name: megatron_train
    strategy_config: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 1, use_distributed_optimizer: true}
  device_mapping: list(range(0,8))
  infer_batch_size: 8
validation:
  data_args: {file_name: data/held_out.jsonl, template: qwen2_5}
"""
DPO = """
exp_name: qwen2.5-3B-dpo-config
train_batch_size: 64
num_gpus_per_node: 8
max_steps: 500
sequence_length: 512
pretrain: Qwen/Qwen2.5-3B-Instruct
ipo: true
beta: 0.2
label_smoothing: 0.0
chosen_key: better
rejected_key: worse
actor_train:
  training_args: {learning_rate: 1.0e-6, per_device_train_batch_size: 1, gradient_accumulation_steps: 8}
  data_args: {file_name: data/pairs.json, template: qwen2_5}
  strategy_args: {strategy_name: megatron_train, strategy_config: {tensor_model_parallel_size: 1}}
  device_mapping: list(range(0,4))
reference:
  strategy_args: {strategy_name: megatron_infer, strategy_config: {tensor_model_parallel_size: 1}}
  device_mapping: list(range(4,8))
"""


def read(folder, text, *overrides):
    (folder / "theirs.yaml").write_text(text)
    return load(folder, "theirs", overrides, compat=True)


def test_an_sft_file_is_read_with_its_columns_epochs_and_batch(tmp_path):
    config, report = read(tmp_path, SFT)
    assert config.kind == "sft" and check_config(config, 8) == []
    data = config.actor_train.data_args
    assert (config.sft.system, data.prompt, config.sft.query, config.sft.response) == ("system", "instruction", "input", "answer")
    assert config.validation.data_args.prompt == "instruction"
    assert config.total_epochs == 3 and config.groups_per_step == 2 * 4 * 4, "8 devices are 4 data-parallel ranks"
    told = {note.key for note in report.aliased}
    assert {"sft_train", "query_key", "response_key", "system_key"} <= told
    assert not report.unknown and not report.lacking


def test_a_dpo_file_is_read_with_its_loss_and_columns(tmp_path):
    config, report = read(tmp_path, DPO)
    assert config.kind == "dpo" and check_config(config, 8) == []
    assert (config.dpo.loss, config.dpo.beta, config.dpo.chosen, config.dpo.rejected) == ("ipo", 0.2, "better", "worse")
    assert "train_batch_size" in {note.key for note in report.without_effect}
    assert not report.unknown and not report.lacking
    again, _ = read(tmp_path, DPO.replace("ipo: true", "ipo: false"))
    assert again.dpo.loss == "sigmoid"


def test_their_keys_are_unknown_in_other_files(tmp_path):
    """A beta of nothing is not taken away in silence."""
    text = "pretrain: model\nbeta: 0.1\nactor_train: {data_args: {file_name: a.jsonl}}\nrewards: {a: {worker_cls: x.Y}}\n"
    _, report = read(tmp_path, text)
    assert "beta" in {note.key for note in report.unknown}


@pytest.mark.parametrize(
    ("mapping", "started", "kind"),
    [
        ({"sft": {}}, None, "sft"),
        ({"sft_train": {}}, None, "sft"),
        ({"dpo": {}}, None, "dpo"),
        ({"chosen_key": "a"}, "rlvr", "dpo"),
        ({"actor_train": {"data_args": {"file_name": "a"}}}, "sft", "sft"),
        ({"actor_train": {"data_args": {"file_name": "a"}}}, None, "rlvr"),
        ({"rewards": {"a": {}}}, "sft", "rlvr"),
    ],
)
def test_the_block_says_what_a_file_is_for_and_else_the_command(mapping, started, kind):
    assert pipeline_of(mapping, started) == kind


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rollout_batch_size": 64}, "rollout_batch_size = 64: is not read: SFT trains rows as they stand"),
        ({"mode": "bench"}, "mode = 'bench': is not read"),
        (
            {"actor_train": {"pg_variant": "vanilla"}},
            "actor_train.pg_variant = 'vanilla': is not read: SFT has a loss",
        ),
        ({"sequence_length": None}, "sequence_length = None: is the longest row in tokens, and is not given"),
        ({"total_epochs": 1, "max_steps": 3}, "total_epochs = 1.0: and max_steps 3 are both given"),
        ({"actor_train": {"data_args": {"file_name": []}}}, "actor_train.data_args.file_name = (missing): names no prompt file"),
        ({"reference": {}}, "reference = 'given': is not read: SFT has no reference"),
        ({"dpo": {}, "sft": None}, "reference = (missing): loss sigmoid compares with the model that training starts from"),
        (
            {"dpo": {"loss": "ipo", "label_smoothing": 0.1}, "sft": None, "reference": {}},
            "dpo.label_smoothing = 0.1: loss ipo does not",
        ),
        ({"dpo": {"loss": "simpo"}, "sft": None, "loss_agg_mode": "rollout-mean"}, "loss_agg_mode = 'rollout-mean': is not read"),
    ],
)
def test_what_contradicts_itself_or_would_do_nothing_is_refused_by_name(tmp_path, changes, says):
    from rows_world import settings

    made = settings(tmp_path, tmp_path) | {"sft": {}}
    made |= {key: {**made[key], **value} if key == "actor_train" else value for key, value in changes.items()}
    made = {key: value for key, value in made.items() if value is not None or key == "sequence_length"}
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump(made))
    try:
        config, _ = load(tmp_path, "ours")
    except ConfigError as error:
        told = error.problems
    else:
        told = check_config(config, 8)
    assert any(says in str(problem) for problem in told), [str(problem) for problem in told]
