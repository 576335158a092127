"""Rules for verl's `data`, `trainer` and asynchronous modes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll.compat.framework import File, at, is_count, is_one_of, is_text
from roll.compat.roll.rule import ENVIRONMENT, SPEED, KeyRule, ignored, lacking, off_or_lacking, renamed
from roll.compat.verl.facts import (
    ASYNC,
    apart,
    data_blocks,
    fully_async,
    of_data,
    split,
    step_prompts,
    sync_interval,
    validates,
    with_critic,
    with_reference,
)

TRACKERS = ("tensorboard", "wandb", "swanlab", "mlflow")
_NOT_SHOWN = ("console", "file")
_OUTLIVES = "prompts that are too long are left out and counted, whatever truncation says"


def _files(value: object, file: File) -> bool:
    listed = value if isinstance(value, list) else [value]
    return bool(listed) and all(isinstance(each, str) and each and "://" not in each for each in listed)


def _mapping(value: object, file: File) -> bool:
    return isinstance(value, Mapping)


DATA = (
    KeyRule("data.train_files", "alias", "read as actor_train.data_args.file_name; prompts are messages, the answer is "
            "reward_model.ground_truth, a text or a number", lambda v, f: {"actor_train.data_args.file_name": v}
            | {f"{block}.ground_truth": "reward_model.ground_truth" for block in data_blocks(f)}, _files, "files"),
    lacking("data.train_files", "a file of this machine, or a list of them: .parquet or .jsonl"),
    KeyRule("data.val_files", "without effect", "without trainer.test_freq above 0 nothing is evaluated; verl does once, "
            "before the first step, unless val_before_train is false", when=lambda v, f: not validates(f),
            values="without test_freq"),
    KeyRule("data.val_files", "alias", "read as validation.data_args.file_name",
            lambda v, f: {"validation.data_args.file_name": v}, _files, "files"),
    lacking("data.val_files", "a file of this machine, or a list of them: .parquet or .jsonl"),
    KeyRule("data.prompt_key", "alias", "read as data_args.messages", of_data("messages"), is_text, "text"),
    renamed("data.max_prompt_length", "prompt_length", "longer prompts are left out and counted"),
    renamed("data.max_response_length", "response_length"),
    KeyRule("data.train_batch_size", "without effect", "rollouts are a stream: a step has ppo_mini_batch_size x "
            "require_batches prompts", when=lambda v, f: fully_async(f), values="fully asynchronous"),
    KeyRule("data.train_batch_size", "alias", "read as rollout_batch_size: prompts", lambda v, f: {"rollout_batch_size": v},
            lambda v, f: is_count(v), "1 or more"),
    ignored("data.gen_batch_size", "groups are rolled out one by one, and filtered ones are replaced until a batch is whole"),
    ignored("data.val_batch_size", "all prompts of a validation are evaluated, on all engines"),
    *off_or_lacking("data.train_max_samples", (-1,), "cut the file"),
    KeyRule("data.val_max_samples", "alias", "read as val_batch_size", lambda v, f: {"val_batch_size": v},
            lambda v, f: is_count(v), "1 or more"),
    ignored("data.val_max_samples", "all are evaluated"),
    KeyRule("data.shuffle", "without effect", "prompts come in an order by seed, another in each epoch; by a column with "
            "actor_train.data_args.curriculum", told=True, when=is_one_of(False), values="false"),
    ignored("data.shuffle", "prompts come in an order by seed, another in each epoch"),
    ignored("data.trust_remote_code", "no code of a model's folder is run"),
    ignored("data.validation_shuffle", "every validation has the same prompts"),
    KeyRule("data.seed", "alias", "read as seed", lambda v, f: {"seed": v}),
    KeyRule("data.truncation", "without effect", "a prompt that is too long is left out and counted; verl ends the run, unless "
            "filter_overlong_prompts is true", when=is_one_of("error"), values="error"),
    KeyRule("data.truncation", "without effect", _OUTLIVES, told=True, when=lambda v, f: not at(
        f, "data.filter_overlong_prompts"), values="left, right, middle"),
    ignored("data.truncation", _OUTLIVES),
    ignored("data.filter_overlong_prompts", "prompts that are too long are always left out, and counted"),
    KeyRule("data.apply_chat_template_kwargs", "alias", "read as data_args.chat_template_kwargs",
            lambda v, f: {"actor_train.data_args.chat_template_kwargs": v} if v else {}, _mapping, "mapping"),
    KeyRule("data.image_key", "without effect", "as in verl's own whole file, whatever the model: for one that sees write "
            "actor_train.data_args.images: {column: images}", when=lambda v, f: at(f, "data.video_key") is not None,
            values="beside video_key"),
    KeyRule("data.image_key", "alias", "read as data_args.images.column", of_data("images.column"), is_text, "text"),
    lacking("data.custom_cls.path", "rows are messages in files: write them, or a source of your own"),
    lacking("data.sampler.class_path", "an order of your own is actor_train.data_args.curriculum, by a column"),
    lacking("data.datagen.path", "rows are read from files"),
    lacking("data.tool_config_path", "tools belong to an agentic run"),
    lacking("data.tokenizer", "a model folder has its own"),
    *(ignored(f"data.{name}", SPEED) for name in (
        "filter_overlong_prompts_workers", "dataloader_num_workers", "use_shm", "image_patch_size")),
    *(ignored(f"data.{name}", "prompts and messages are always kept") for name in (
        "return_raw_input_ids", "return_raw_chat", "return_full_prompt", "return_multi_modal_inputs")),
    *(ignored(f"data.{name}", "only images are read") for name in ("video_key", "audio_key", "mm_processor_kwargs")),
    *(ignored(f"data.{name}", "names parts of custom_cls, sampler or datagen") for name in (
        "custom_cls.name", "sampler.class_name", "datagen.name", "function_tool_path")),
)  # fmt: skip


def _devices(value: object, file: File) -> Mapping[str, Any]:
    found = split(file)
    assert found is not None
    nodes, per_node, trainer, engines = found
    roles = ["actor_train", *["reference"] * with_reference(file), *["critic"] * with_critic(file)]
    mapped = {f"{role}.device_mapping": trainer for role in roles}
    return {"num_nodes": nodes, "num_gpus_per_node": per_node, **mapped, "actor_infer.device_mapping": engines}


def _trackers(value: Any, file: File) -> Mapping[str, Any]:
    named = [each for each in (value if isinstance(value, list) else [value]) if each in TRACKERS]
    project = at(file, "trainer.project_name")
    of_wandb = {"tracker_kwargs.wandb.project": project} if "wandb" in named and project else {}
    return {"track_with": named or "none"} | of_wandb


def _known_trackers(value: Any, file: File) -> bool:
    listed = value if isinstance(value, list) else [value]
    return all(each in (*TRACKERS, *_NOT_SHOWN) for each in listed)


def _folder(value: Any, file: File) -> Mapping[str, Any]:
    head, _, last = str(value).rstrip("/").rpartition("/")
    return {"output_dir": head if head and last == at(file, "trainer.experiment_name") else value}


def _steps_given(value: object, file: File) -> bool:
    given = at(file, "trainer.total_training_steps") or file.get("max_steps")
    return given is not None or (fully_async(file) and is_count(at(file, "rollout.total_rollout_steps")))


TRAINER = (
    KeyRule("trainer.n_gpus_per_node", "alias", "read as num_gpus_per_node, num_nodes and device_mapping: every role has all "
            "devices, and takes turns with the others", _devices, lambda v, f: is_count(v) and not apart(f), "1 or more"),
    KeyRule("trainer.n_gpus_per_node", "alias", "read as num_gpus_per_node, num_nodes and device_mapping: the trainer has the "
            "first devices, of each node where both pools fit on one, the engines those of rollout.n_gpus_per_node behind them",
            _devices, lambda v, f: is_count(v) and split(f) is not None, "1 or more; engines apart"),
    lacking("trainer.n_gpus_per_node", "pools of different sizes on different nodes: write num_nodes, num_gpus_per_node, "
            "actor_train.device_mapping and actor_infer.device_mapping"),
    ignored("trainer.nnodes", "part of device_mapping"),
    ignored("rollout.n_gpus_per_node", "part of device_mapping"),
    ignored("rollout.nnodes", "part of device_mapping"),
    KeyRule("trainer.total_epochs", "without effect", "the number of steps decides", when=_steps_given,
            values="with a number of steps"),
    renamed("trainer.total_epochs", "total_epochs"),
    renamed("trainer.total_training_steps", "max_steps"),
    KeyRule("trainer.project_name", "alias", "part of output_dir, and the project of wandb", lambda v, f: {} if at(
        f, "trainer.default_local_dir") else {"output_dir": f"checkpoints/{v}"}, is_text, "text"),
    renamed("trainer.experiment_name", "exp_name"),
    KeyRule("trainer.default_local_dir", "alias", "read as output_dir, without a last part that is experiment_name; files go "
            "to <output_dir>/<experiment_name>", _folder, is_text, "text"),
    KeyRule("trainer.logger", "alias", "read as track_with; the console, and metrics.jsonl, are always there", _trackers,
            _known_trackers, f"console, file, {', '.join(TRACKERS)}"),
    lacking("trainer.logger", f"there are {', '.join(TRACKERS)}, and metrics.jsonl"),
    KeyRule("trainer.save_freq", "alias", "read as save_steps", lambda v, f: {"save_steps": v * sync_interval(f)},
            lambda v, f: is_count(v), "1 or more"),
    KeyRule("trainer.save_freq", "alias", "read as save_steps: 0; the last step leaves a checkpoint, in verl none",
            lambda v, f: {"save_steps": 0}),
    KeyRule("trainer.test_freq", "alias", "read as eval_steps", lambda v, f: {"eval_steps": v * sync_interval(f)},
            lambda v, f: validates(f), "1 or more, with val_files"),
    ignored("trainer.test_freq", "nothing is evaluated"),
    KeyRule("trainer.val_before_train", "without effect", "nothing is evaluated", when=lambda v, f: not validates(f),
            values="without validation"),
    KeyRule("trainer.val_before_train", "without effect", "a run that validates begins with version 0", told=True,
            when=is_one_of(False), values="false"),
    ignored("trainer.val_before_train", "a run that validates begins with version 0"),
    *off_or_lacking("trainer.val_only", (False,), "roll eval evaluates"),
    KeyRule("trainer.resume_mode", "alias", "read as resume_from_checkpoint", lambda v, f: {
        "resume_from_checkpoint": {"auto": "auto", "disable": False}[v]}, is_one_of("auto", "disable"), "auto, disable"),
    KeyRule("trainer.resume_mode", "alias", "read as resume_from_checkpoint: the path of resume_from_path", lambda v, f: {
        "resume_from_checkpoint": at(f, "trainer.resume_from_path")}, lambda v, f: v == "resume_path" and is_text(
            at(f, "trainer.resume_from_path"), f), "resume_path"),
    lacking("trainer.resume_mode", "auto, disable, or resume_path with resume_from_path, a checkpoint of this project's"),
    ignored("trainer.resume_from_path", "part of resume_mode: resume_path"),
    KeyRule("trainer.critic_warmup", "without effect", "no critic is trained: only adv_estimator: gae has one",
            when=lambda v, f: not with_critic(f), values="without a critic"),
    renamed("trainer.critic_warmup", "critic_warmup"),
    renamed("trainer.max_actor_ckpt_to_keep", "max_ckpt_to_keep"),
    lacking("trainer.default_hdfs_dir", "checkpoints go to output_dir"),
    ignored("trainer.max_critic_ckpt_to_keep", "a checkpoint has policy and critic"),
    *(ignored(f"trainer.{name}", "samples.jsonl has rollouts, validation's, too (rollout_log_per_step)") for name in (
        "log_val_generations", "rollout_data_dir", "validation_data_dir")),
    ignored("trainer.balance_batch", "micro-batches are cut by tokens, and ranks get equal numbers of them"),
    ignored("trainer.device", "a device is an accelerator, or a CPU slot where there is none"),
    *(ignored(f"trainer.{name}", "names parts of verl's own implementation") for name in (
        "use_legacy_worker_impl", "use_v1", "ray_wait_register_center_timeout", "esi_redundant_time",
        "del_local_ckpt_after_load", "v1.sync", "v1.sampler", "v1.colocate_async", "v1.separate_async",
        "remove_previous_ckpt_in_save")),
    ignored("trainer.worker_env", ENVIRONMENT),
    *off_or_lacking("trainer.v1.trainer_mode", ("sync",), "write async_generation_ratio, the batches that rollouts may run "
            "ahead, and for engines apart rollout.nnodes and rollout.n_gpus_per_node"),
)  # fmt: skip


def _ahead(file: File) -> float:
    """Returns how many batches rollouts may run ahead: verl starts (1 + threshold) batches a step between two weights."""
    stale = float(at(file, f"{ASYNC}.staleness_threshold", 0.1))
    return round((1 + stale) * sync_interval(file) - 1, 6)


def _threshold(value: object, file: File) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _stream(value: Any, file: File) -> Mapping[str, Any]:
    return {"async_generation_ratio": _ahead(file), "async_pipeline_depth": _ahead(file)}


FLOW = (
    KeyRule(f"{ASYNC}.staleness_threshold", "alias", "s: read as async_generation_ratio and async_pipeline_depth (1 + s) x "
            "trigger_parameter_sync_step - 1, by groups as there", _stream, _threshold, "0 or more"),
    KeyRule(f"{ASYNC}.trigger_parameter_sync_step", "alias", "read as weight_push_interval",
            lambda v, f: {"weight_push_interval": v}, lambda v, f: is_count(v), "1 or more"),
    KeyRule(f"{ASYNC}.require_batches", "alias", "read as rollout_batch_size: ppo_mini_batch_size x require_batches prompts, "
            "an optimiser step for each mini-batch", lambda v, f: {"rollout_batch_size": step_prompts(f)},
            lambda v, f: is_count(v), "1 or more"),
    KeyRule(f"{ASYNC}.partial_rollout", "alias", "read as weight_update_mode: interrupt; responses go on from their tokens",
            lambda v, f: {"weight_update_mode": "interrupt"}, is_one_of(True), "true"),
    KeyRule(f"{ASYNC}.partial_rollout", "alias", "read as weight_update_mode: drain",
            lambda v, f: {"weight_update_mode": "drain"}, is_one_of(False), "false"),
    *off_or_lacking(f"{ASYNC}.use_rollout_log_probs", (True,), "write old_logprobs: recompute"),
    KeyRule(f"{ASYNC}.compute_prox_log_prob", "alias", "read as old_logprobs: recompute", lambda v,
        f: {"old_logprobs": "recompute"},
            is_one_of(True), "true"),
    ignored(f"{ASYNC}.compute_prox_log_prob", "bypass_mode decides"),
    *off_or_lacking(f"{ASYNC}.use_dynamic_resource_scheduling", (False,), "devices do not change hands in a run: write "
            "sharing: overlap and devices that both have"),
    ignored(f"{ASYNC}.use_trainer_do_validate", "the engines validate"),
    *(ignored(f"{ASYNC}.{name}", "devices do not change hands in a run") for name in (
        "dynamic_schedule_policy", "dynamic_schedule_deactivate_ratio", "dynamic_schedule_enable_rebalance")),
    ignored(f"{ASYNC}.concurrent_samples_per_replica", "max_running_requests bounds an engine's requests"),
    ignored(f"{ASYNC}.checkpoint_engine", "model_update_transport says how weights travel"),
    KeyRule("rollout.total_rollout_steps", "alias", "read as max_steps: so many prompts in all, rounded down", lambda v, f: {
        "max_steps": max(1, v // step_prompts(f))}, lambda v, f: is_count(v) and fully_async(f) and at(
            f, "trainer.total_training_steps") is None, "1 or more"),
    ignored("rollout.total_rollout_steps", "trainer.total_epochs, or total_training_steps, decides"),
    *(ignored(f"rollout.{name}", why) for name, why in (
        ("n", "actor_rollout_ref.rollout.n counts, in verl, too"), ("total_epochs", "trainer.total_epochs counts"),
        ("test_freq", "trainer.test_freq counts"))),
)  # fmt: skip
