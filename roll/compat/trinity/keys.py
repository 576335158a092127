"""Rules for the keys of Trinity-RFT's YAML files. A key in none of these rules is refused, never guessed.

The rules are those of compat/roll/rule.py; the second argument of their functions is the whole file, for a number here often
follows from several keys there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from roll.compat.framework import File, at, is_count, is_one_of, is_text
from roll.compat.roll.readings import MATH
from roll.compat.roll.rule import KeyRule, ignored, lacking, off_or_lacking, renamed

TASKS = "buffer.explorer_input.taskset"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w-]*/[\w.-]+(?<!\.jsonl)")


def task_data(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns keys of `data_args`. `given`: a task set; `path` may name a data set of the hub, a JSONL file, or a folder of
    them."""
    path, split = given["path"], given.get("split") or "train"
    if _HUB_NAME.fullmatch(path):
        named = {"path": path, "subset_name": given.get("subset_name"), "split": split}
        return {name: value for name, value in named.items() if value is not None}
    return {"file_name": path if path.endswith(".jsonl") else f"{path.rstrip('/')}/{split}.jsonl"}


def batches_ahead(file: File) -> int:
    """Returns 1 + async_generation_ratio, where both sides stop at the same number of tasks; 0 if the keys that decide it are no
    numbers."""
    interval, offset = at(file, "synchronizer.sync_interval", 1), at(file, "synchronizer.sync_offset", 0)
    return interval + offset if is_count(interval) and type(offset) is int else 0


def is_apart(value: object, file: File) -> bool:
    """Returns True if explorer and trainer are separate processes."""
    return file.get("mode") in ("explore", "train")


def tasks_of_a_batch(file: File) -> Any:
    """Returns the tasks of a batch, or None if unknown."""
    samples, size = at(file, "buffer.train_batch_size"), at(file, "algorithm.repeat_times", 1)
    return at(file, "buffer.batch_size") or (samples // size if is_count(samples) and is_count(size) else None)


def _interval(value: object, file: File) -> Mapping[str, object]:
    ahead = batches_ahead(file) - 1
    return {"weight_push_interval": value, "async_generation_ratio": ahead, "async_pipeline_depth": ahead}


SYNCHRONIZER = (
    KeyRule("synchronizer.sync_method", "alias", "read as model_update_transport: checkpoint_dir",
            lambda v, f: {"model_update_transport": "checkpoint_dir"}, lambda v, f: v == "checkpoint", "checkpoint"),
    KeyRule("synchronizer.sync_method", "alias", "read as model_update_transport: object_store; engines fetch weights from the "
            "trainer's memory", lambda v, f: {"model_update_transport": "object_store"}, lambda v, f: v == "memory", "memory"),
    KeyRule("synchronizer.sync_method", "alias", "read as model_update_transport: checkpoint_dir, as there",
            lambda v, f: {"model_update_transport": "checkpoint_dir"}, lambda v, f: v == "nccl" and is_apart(v, f),
            "nccl; mode explore, train"),
    KeyRule("synchronizer.sync_method", "alias", "read as model_update_transport: collective, a broadcast by gloo",
            lambda v, f: {"model_update_transport": "collective"}, lambda v, f: v == "nccl", "nccl; mode both"),
    lacking("synchronizer.sync_method", "write checkpoint, memory or nccl"),
    KeyRule("synchronizer.sync_interval", "alias", "k: weight_push_interval k, async_generation_ratio and async_pipeline_depth "
            "k - 1 + sync_offset: task i is sampled by version k * (i // (k * batch_size)), or a newer one with sync_offset",
            _interval, lambda v, f: batches_ahead(f) > 0, "1 or more"),
    ignored("synchronizer.sync_offset", "part of async_generation_ratio"),
    *off_or_lacking("synchronizer.sync_style", ("fixed", None), "nothing there bounds how far explorers run ahead: write fixed, "
                    "or async_generation_ratio, weight_push_interval, weight_pull_interval and weight_update_mode"),
    ignored("synchronizer.sync_timeout", "peer_timeout says when a process that is alone gives up"),
)  # fmt: skip


BLOCKS = (
    "algorithm", "model", "cluster", "buffer", "explorer", "trainer", "synchronizer", "monitor", "data_processor", "service",
    "log",
)  # fmt: skip
SCALARS = (
    "project", "group", "name", "mode", "checkpoint_root_dir", "continue_from_checkpoint", "ignore_validator_suggestions",
    "stages",
)  # fmt: skip
IDENTIFYING = ("buffer", "explorer", "synchronizer")
"""A file with one of these blocks is Trinity's; a scalar of such a name, or another block, may be somebody's variable."""

LEFT_OUT: dict[str, object] = {
    "mode": "both",
    "checkpoint_root_dir": "./checkpoints",
    "name": "rft",
    "continue_from_checkpoint": True,
    "algorithm.algorithm_type": "ppo",
    "algorithm.optimizer.lr_scheduler_type": "constant",
    "algorithm.optimizer.weight_decay": 0.01,
    "buffer.total_epochs": 1,
    "explorer.rollout_model.engine_type": "vllm",
}
"""Trinity's defaults that are not the ones here: they count where a file leaves the key out."""
NEEDED = {"algorithm.repeat_times": "is left out, and Trinity's default depends on the algorithm: write it"}

_EXPERIENCES = "buffer.trainer_input.experience_buffer"
_TRAINING = "actor_train.training_args"
_ENGINE = "actor_infer.strategy_args.strategy_config"
_BY_TOKENS = "micro-batches are always cut by tokens"


def _whole(file: File, *paths: str) -> int | None:
    """Returns the product of counts; one that is left out is 1. None: one is no count."""
    product = 1
    for path in paths:
        value = at(file, path, 1)
        if not is_count(value):
            return None
        product *= value
    return product


def _devices(value: object, file: File) -> Mapping[str, Any]:
    """Engines have as many devices as they name; a trainer of its own has all, one beside engines the others."""
    there = _whole(file, "cluster.node_num", "cluster.gpu_per_node") or 0
    engines = _whole(file, "explorer.rollout_model.engine_num", "explorer.rollout_model.tensor_parallel_size") or 0
    mode, found = file.get("mode"), {"num_gpus_per_node": value}
    first, alone = there if mode == "train" else max(0, there - engines), mode == "explore"
    trainer, explorer = list(range(first)), list(range(engines)) if alone else list(range(first, there))
    if not alone:
        found |= {"actor_train.device_mapping": trainer, "reference.device_mapping": trainer}
    return found | ({"actor_infer.device_mapping": explorer} if mode != "train" else {})


def _batch(value: object, file: File) -> Mapping[str, Any]:
    """A step has one optimiser step of all its samples."""
    size = at(file, "algorithm.repeat_times", 1)
    tasks = tasks_of_a_batch(file)
    found = {"rollout_batch_size": tasks}
    trainers = len(_devices(0, file).get("actor_train.device_mapping", ()))
    if trainers and is_count(tasks) and is_count(size):
        found[f"{_TRAINING}.per_device_train_batch_size"] = tasks * size * _ulysses(file) // trainers
    return found


def _ulysses(file: File) -> int:
    """Returns the number of devices that divide the tokens of one batch."""
    return _whole(file, "trainer.ulysses_sequence_parallel_size") or 1


def _one_batch(value: object, file: File) -> bool:
    """Returns True if a step trains just the samples of one batch of tasks."""
    size, tasks = at(file, "algorithm.repeat_times", 1), at(file, "buffer.batch_size")
    fits = is_count(value) and is_count(size) and value % size == 0
    return fits and (tasks is None or tasks * size == value)


def _database(value: Any, file: File) -> Mapping[str, Any]:
    return {"groups_database": value.replace("postgresql://", "postgresql+psycopg://", 1)}


def _tasks_have(name: str) -> Any:
    return lambda value, file: at(file, f"{TASKS}.rollout_args.{name}") is not None


def _context(value: object, file: File) -> Mapping[str, Any]:
    response, given = at(file, "model.max_response_tokens"), at(file, "model.max_prompt_tokens")
    return {"sequence_length": value} | ({"prompt_length": value - response} if is_count(response) and given is None else {})


_GRPO = {
    "adv_estimator": "grpo",
    "actor_train.pg_variant": "ppo",
    "old_logprobs": "bypass",
    "dual_clip_c": 3.0,
    "loss_agg_mode": "token-mean",
    "use_kl_loss": True,
    "kl_loss_type": "k2",
    "kl_loss_coef": 0.001,
}
_GRPO_NOTE = (
    "with Trinity's defaults: PPO's ratio to the sampler, clipped and bounded at 3 times the advantage, mean over tokens, a KL "
    "loss to a reference (kl_loss_type k2, kl_loss_coef 0.001)"
)

RUN = (
    KeyRule("mode", "alias", "without sync_method weights go between processes as files, as there",
            lambda v, f: {"mode": v, "model_update_transport": "checkpoint_dir"}, is_apart, "explore, train"),
    KeyRule("mode", "alias", "one process explores and trains", lambda v, f: {"mode": v}, is_one_of("both"), "both"),
    KeyRule("mode", "lacking", "is not there: explore, train or both; roles may share devices",
            lambda v, f: {"mode": "both"}, values="else"),
    KeyRule("project", "alias", "part of output_dir"),
    KeyRule("group", "alias", "part of output_dir"),
    KeyRule("checkpoint_root_dir", "alias", "read as output_dir, with project and group; all processes of a run have the same",
            lambda v, f: {"output_dir": "/".join(str(part) for part in (v, f.get("project"), f.get("group")) if part)}),
    renamed("name", "exp_name", "the processes of a run find each other by it and output_dir"),
    KeyRule("continue_from_checkpoint", "alias", "read as resume_from_checkpoint: auto",
            lambda v, f: {"resume_from_checkpoint": "auto"}, is_one_of(True), "true"),
    KeyRule("continue_from_checkpoint", "alias", "read as resume_from_checkpoint: false",
            lambda v, f: {"resume_from_checkpoint": False}),
    *off_or_lacking("stages", ([], None), "a run has one stage: start the next from this one's checkpoint"),
    ignored("ignore_validator_suggestions", "a problem is an error, with what to do"),
    renamed("monitor.monitor_type", "track_with"),
    KeyRule("cluster.gpu_per_node", "alias", "read as num_gpus_per_node and device_mapping. On one machine each process takes "
            "GPUs that no other run holds, unless its CUDA_VISIBLE_DEVICES says which", _devices,
            lambda v, f: is_count(v), "1 or more"),
    lacking("cluster.gpu_per_node", "write how many devices this process has"),
    renamed("cluster.node_num", "num_nodes"),
    *off_or_lacking("cluster.ray_address", ("auto", None), "write it to RAY_ADDRESS in the environment"),
)  # fmt: skip

ALGORITHM = (
    KeyRule("algorithm.algorithm_type", "alias", _GRPO_NOTE, lambda v, f: _GRPO, is_one_of("grpo", "grpo_verl"), "grpo"),
    KeyRule("algorithm.algorithm_type", "lacking", "only grpo is translated: write adv_estimator, actor_train.pg_variant and the "
            "KL's keys, and algorithm.algorithm_type: grpo"),
    renamed("algorithm.repeat_times", "num_return_sequences_in_group"),
    renamed("algorithm.optimizer.lr", f"{_TRAINING}.learning_rate"),
    renamed("algorithm.optimizer.lr_scheduler_type", f"{_TRAINING}.lr_scheduler_type"),
    renamed("algorithm.optimizer.weight_decay", f"{_TRAINING}.weight_decay"),
    KeyRule("algorithm.optimizer.lr_warmup_steps", "alias", f"read as `{_TRAINING}.warmup_steps`",
            lambda v, f: {f"{_TRAINING}.warmup_steps": max(0, v)}, lambda v, f: type(v) is int, "integers"),
    renamed("algorithm.optimizer.lr_warmup_steps_ratio", f"{_TRAINING}.warmup_ratio"),
    renamed("algorithm.optimizer.clip_grad", "max_grad_norm"),
    *off_or_lacking("algorithm.sample_strategy", ("default", None), "groups are trained in the order of admission "
                    "(groups_order); async_generation_ratio bounds their age"),
    *(lacking(f"algorithm.{name}", f"it is part of algorithm_type: write {ours} instead") for name, ours in (
        ("advantage_fn", "adv_estimator"), ("policy_loss_fn", "actor_train.pg_variant"), ("kl_loss_fn", "kl_loss_type"),
        ("kl_penalty_fn", "kl_penalty"), ("entropy_loss_fn", "entropy_loss_coef"))),
    renamed("model.model_path", "pretrain", "a local folder, or a name of the hub, which a run fetches"),
    renamed("model.max_response_tokens", "response_length"),
    renamed("model.max_prompt_tokens", "prompt_length"),
    KeyRule("model.max_model_len", "alias", "read as sequence_length; without max_prompt_tokens a prompt may have what "
            "max_response_tokens leaves", _context, lambda v, f: is_count(v), "1 or more"),
    *(rule for name in ("temperature", "top_p") for rule in (
        KeyRule(f"model.{name}", "without effect", "the tasks have their own", when=_tasks_have(name),
                values="with rollout_args"),
        renamed(f"model.{name}", f"actor_infer.generating_args.{name}"),
    )),
)  # fmt: skip

BUFFER = (
    KeyRule("buffer.batch_size", "alias", "read as rollout_batch_size", _batch, lambda v, f: is_count(v), "1 or more"),
    KeyRule("buffer.train_batch_size", "alias", "rollout_batch_size times num_return_sequences_in_group: one optimiser step",
            _batch, _one_batch, "batch_size x repeat_times"),
    KeyRule("buffer.train_batch_size", "lacking", "a step trains what batch_size tasks of repeat_times samples give: write the "
            "product"),
    renamed("buffer.total_steps", "max_steps"),
    KeyRule("buffer.total_epochs", "without effect", "max_steps decides", values="with a number of steps",
            when=lambda v, f: f.get("max_steps") is not None or at(f, "buffer.total_steps") is not None),
    renamed("buffer.total_epochs", "total_epochs"),
    ignored(f"{TASKS}.name", "names the reward's domain"),
    *off_or_lacking(f"{TASKS}.storage_type", ("file",), "tasks are rows of a JSONL file"),
    KeyRule(f"{TASKS}.path", "alias", "read as actor_train.data_args: path, subset_name and split for a name of the hub "
            "(owner/name), else file_name: a local JSONL file, or a folder with <split>.jsonl",
            lambda v, f: {f"actor_train.data_args.{name}": each for name, each in task_data(at(f, TASKS)).items()},
            is_text, "text"),
    ignored(f"{TASKS}.subset_name", "part of the data set's name; a local file is the subset"),
    ignored(f"{TASKS}.split", "part of the data set's name, or of the file's, where path is a folder"),
    renamed(f"{TASKS}.format.prompt_key", "actor_train.data_args.prompt"),
    renamed(f"{TASKS}.format.response_key", "actor_train.data_args.ground_truth"),
    renamed(f"{TASKS}.format.messages_key", "actor_train.data_args.messages"),
    *(renamed(f"{TASKS}.rollout_args.{name}", f"actor_infer.generating_args.{name}") for name in ("temperature", "top_p")),
    KeyRule(f"{TASKS}.default_workflow_type", "alias", "read as MathRuleRewardWorker: 1 for a right result, else 0; no system "
            "prompt and no reward for the form, which Trinity's has",
            lambda v, f: {f"rewards.{str(at(f, f'{TASKS}.name', 'tasks')).replace('.', '_')}.worker_cls": MATH},
            is_one_of("math_workflow", "async_math_workflow"), "math_workflow"),
    lacking(f"{TASKS}.default_workflow_type", "write rewards.<domain>.worker_cls, a class with `grade`, or an agentic run"),
    *off_or_lacking(f"{TASKS}.default_reward_fn_type", ("math_reward", None), "write rewards.<domain>.worker_cls"),
    lacking("buffer.explorer_input.tasksets", "write rewards by domain, and a list as actor_train.data_args.file_name"),
    ignored(f"{_EXPERIENCES}.name", "a run has one buffer"),
    *off_or_lacking(f"{_EXPERIENCES}.storage_type", ("queue", "sql"), "groups lie in memory or in a database: groups_database"),
    KeyRule(f"{_EXPERIENCES}.path", "without effect", "groups lie in memory with mode both", when=lambda v, f: not is_apart(v, f),
            values="mode both"),
    KeyRule(f"{_EXPERIENCES}.path", "alias", "read as groups_database: the same for all processes, and a new one for each run",
            _database, lambda v, f: is_text(v, f) and v.startswith(("sqlite:///", "postgresql")), "SQLite, PostgreSQL"),
    lacking(f"{_EXPERIENCES}.path", "SQLite and PostgreSQL only: write groups_database"),
    *off_or_lacking("buffer.trainer_input.auxiliary_buffers", ({}, None), "training on others' samples is not there"),
)  # fmt: skip

EXPLORER = (
    KeyRule("explorer.name", "alias", "read as explorer_name", lambda v, f: {"explorer_name": v},
            lambda v, f: f.get("mode") == "explore", "mode explore"),
    ignored("explorer.name", "this process is no explorer of its own"),
    KeyRule("explorer.runner_per_model", "alias", "read as max_running_requests, times repeat_times", lambda v, f: {
        "max_running_requests": v * (_whole(f, "algorithm.repeat_times") or 1)}, lambda v, f: is_count(v), "1 or more"),
    KeyRule("explorer.rollout_model.engine_num", "alias", "the devices of actor_infer.device_mapping"),
    KeyRule("explorer.rollout_model.tensor_parallel_size", "alias", "the engine's own, and a part of actor_infer.device_mapping",
            lambda v, f: {f"{_ENGINE}.tensor_parallel_size": v} if v != 1 else {}),
    KeyRule("explorer.rollout_model.engine_type", "alias", "read as actor_infer.strategy_args.strategy_name",
            lambda v, f: {"actor_infer.strategy_args.strategy_name": v.removesuffix("_async")},
            is_one_of("vllm", "vllm_async", "sglang"), "vllm, sglang"),
    lacking("explorer.rollout_model.engine_type", "vllm, sglang and hf_infer are: actor_infer.strategy_args.strategy_name"),
    renamed("explorer.rollout_model.dtype", "actor_infer.model_args.dtype"),
    *(renamed(f"explorer.rollout_model.{name}", f"{_ENGINE}.{name}") for name in (
        "gpu_memory_utilization", "enforce_eager", "enable_prefix_caching", "enable_chunked_prefill")),
    renamed("explorer.eval_interval", "eval_steps"),
    *off_or_lacking("explorer.eval_on_startup", (True,), "a run that validates begins with version 0"),
)  # fmt: skip

TRAINER = (
    renamed("trainer.grad_clip", "max_grad_norm"),
    *off_or_lacking("trainer.use_dynamic_bsz", (True,), _BY_TOKENS),
    KeyRule("trainer.max_token_len_per_gpu", "alias", "read as actor_train.max_tokens_per_microbatch_in_train and _in_infer, "
            "which count what all ranks of ulysses_sequence_parallel_size have", lambda v, f: {
                f"actor_train.max_tokens_per_microbatch_in_{each}": v * _ulysses(f) if is_count(v) else v
                for each in ("train", "infer")}),
    KeyRule("trainer.ulysses_sequence_parallel_size", "alias", "read as model_args.ulysses_size of actor_train and reference",
            lambda v, f: {f"{role}.model_args.ulysses_size": 1 if v is None else v for role in ("actor_train", "reference")}),
    *off_or_lacking("trainer.trainer_type", ("verl",), "is not there: the trainer is this project's own"),
    KeyRule("trainer.trainer_strategy", "alias", "read as fsdp2_train", lambda v, f: {
        "actor_train.strategy_args.strategy_name": "fsdp2_train"}, is_one_of("fsdp", "fsdp2"), "fsdp, fsdp2"),
    lacking("trainer.trainer_strategy", "write actor_train.strategy_args: {strategy_name: megatron_train, strategy_config: ...}"),
    KeyRule("trainer.save_interval", "alias", "read as save_steps", lambda v, f: {"save_steps": v}, lambda v, f: is_count(v),
            "1 or more"),
    ignored("trainer.save_interval", "the last step leaves a checkpoint, and every save_steps-th"),
    renamed("trainer.max_checkpoints_to_keep", "max_ckpt_to_keep"),
)  # fmt: skip

RULES = (*RUN, *ALGORITHM, *BUFFER, *EXPLORER, *TRAINER, *SYNCHRONIZER)
