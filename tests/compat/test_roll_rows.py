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


DISTILLATION = """
exp_name: distill
save_steps: 100
student_pretrain: Qwen/Qwen2.5-7B-Instruct
teacher_pretrain: Qwen/Qwen2.5-14B-Instruct
logits_topk: 32
distill_loss_weight: 0.85
kd_objective: reverse_kl
distill_on_prompt: false
logits_transfer_backend: nccl-only
sequence_length: 2048
question_key: question_zh
answer_key: answer_zh
validation:
  data_args: {file_name: [data/held_out.json], template: qwen2_5}
student:
  model_args: {attn_implementation: fa2, dtype: bf16, model_type: ~}
  training_args:
    {learning_rate: 2.0e-5, lr_scheduler_type: constant, per_device_train_batch_size: 8, gradient_accumulation_steps: 4}
  data_args: {template: qwen2_5, file_name: [data/train.json], preprocessing_num_workers: 16}
  strategy_args: {strategy_name: fsdp2_train, strategy_config: {fsdp_size: 8}}
  use_sequence_packing: true
  device_mapping: list(range(0,8))
teacher:
  model_args: {attn_implementation: fa2, dtype: bf16}
  data_args: {template: qwen2_5}
  training_args: {per_device_train_batch_size: 8}
  strategy_args: {strategy_name: fsdp2_infer, strategy_config: {fsdp_size: 8}}
  device_mapping: list(range(0,8))
"""


def test_a_distillation_file_is_read_as_sft_with_a_teacher(tmp_path):
    config, report = read(tmp_path, DISTILLATION)
    assert config.kind == "sft" and check_config(config, 8) == []
    assert (config.actor_train.data_args.prompt, config.validation.data_args.prompt) == ("question_zh", "question_zh")
    assert (config.sft.response, config.sft.loss_on, config.total_epochs) == ("answer_zh", "last", 1)
    teacher, loss = config.teachers["teacher"], config.distillation
    assert (config.pretrain, teacher.model_args.model_name_or_path) == ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-14B-Instruct")
    assert (teacher.opd_kl_coef, loss.kd_objective, loss.logits_topk) == (0.85, "reverse_kl", 32)
    assert len(teacher.devices) == 8 and not report.unknown and not report.lacking
    assert {"distillation.logits_topk", "sequence_length"} <= {note.key for note in report.differences}


def test_what_a_distillation_file_leaves_out_is_as_in_roll(tmp_path):
    named = ("logits_topk", "distill_loss_weight", "kd_objective", "distill_on_prompt", "question_key", "answer_key")
    text = "".join(line for line in DISTILLATION.splitlines(keepends=True) if not line.startswith(named))
    config, _ = read(tmp_path, text)
    assert (config.teachers["teacher"].opd_kl_coef, config.distillation.kd_objective) == (0.5, "forward_kl")
    assert (config.actor_train.data_args.prompt, config.sft.response, config.distillation.logits_topk) == (
        "question",
        "answer",
        64,
    )


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("kd_objective: reverse_kl", "kd_objective: adaptive_kl", "kd_objective = 'adaptive_kl': one of forward_kl"),
        ("logits_topk: 32", "logits_topk: 0", "logits_topk = 0: the whole vocabulary is so many tokens as it has"),
        ("logits_topk: 32", "kd_temperature: 2", "kd_temperature = 2: both distributions"),
        (
            "fsdp2_train, strategy_config: {fsdp_size: 8}",
            "megatron_train",
            "is of whole distributions; fix: fsdp2_train or deepspeed",
        ),
        (
            "Qwen2.5-7B-Instruct",
            "Qwen2.5-VL-7B-Instruct",
            "actor_train.data_args.images = 'given': is read by RLVR and agents alone",
        ),
    ],
)
def test_what_distillation_cannot_do_here_is_told(tmp_path, old, new, says):
    config, report = read(tmp_path, DISTILLATION.replace(old, new))
    told = [*map(str, check_config(config, 8)), *(f"{note.key} = {note.value!r}: {note.message}" for note in report.lacking)]
    assert any(says in each for each in told), told


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
        ({"student": {}}, "rlvr", "sft"),
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
        ({"teachers": {"big": {}}}, "distillation.kd_objective = 'policy_gradient': the policy did not sample the rows"),
        ({"teachers": {"big": {"opd_kl_coef": [1.0, 2.0]}}}, "teachers.big.opd_kl_coef = [1.0, 2.0]: is the share"),
        ({"teachers": {"big": {"hint_key": "hint"}}}, "rows are scored as they stand; fix: remove it"),
        ({"distillation": {"kd_objective": "forward_kl"}}, "distillation.kd_objective = 'forward_kl': there are no teachers"),
        ({"dpo": {}, "sft": None, "teachers": {"big": {}}}, "teachers = 'given': is not read: DPO trains rows"),
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
