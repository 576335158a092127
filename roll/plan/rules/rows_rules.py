"""Rules of runs on rows of files (SFT, DPO)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from roll.core.configs.arguments import DataArguments, GeneratingArguments
from roll.core.configs.base import BaseConfig
from roll.core.configs.fields import default_of
from roll.core.configs.losses import PolicyLossKnobs
from roll.core.configs.ppo import PPOConfig, set_key
from roll.core.configs.problems import MISSING_VALUE, Problem
from roll.core.configs.rows import PairLossConfig
from roll.core.configs.worker import ActorTrainConfig
from roll.plan.rows_config import RowsConfig, RowSetConfig
from roll.plan.rules.rlvr_rules import data_problems
from roll.plan.rules.set_names import set_names

OF_EVERY_PIPELINE = frozenset(
    (
        *("exp_name", "output_dir", "seed", "max_steps", "pretrain", "deterministic", "rpc_timeout", "worker_start_timeout"),
        *("heartbeat_timeout", "stop_within_s", "val_batch_size", "sequence_length", "save_steps", "max_ckpt_to_keep"),
        *("keep_best", "early_stopping", "resume_from_checkpoint", "eval_steps", "logging_steps", "track_with"),
        *("metrics_address", "otlp_endpoint", "on_event"),
        *("tracker_kwargs", "alarms", "rollout_log_per_step", "rollout_log_limit_gb", "max_trainer_restarts", "flow"),
        *("num_nodes", "num_gpus_per_node", "device_timeout", "max_grad_norm", "loss_agg_mode", "actor_train", "reference"),
    )
)
"""The keys of RLVR and agentic runs that runs on rows read, too."""

OF_ENGINES = frozenset(
    (
        *("actor_infer", "sharing", "max_running_requests", "max_engine_restarts", "engine_health_interval_s"),
        *("engine_health_timeout_s", "model_update_transport", "model_update_buffer_size_mb"),
    )
)
"""Those that are read besides where engines answer questions (`generate_during_eval`)."""

OF_A_LOSS = frozenset({"pg_variant", "router_replay", *(item.name for item in fields(PolicyLossKnobs))})


def rows_problems(config: RowsConfig) -> Iterator[Problem]:
    yield from _unread(config)
    yield from _data(config)
    yield from _answers(config)
    yield from set_names(config.validation_sets)
    if config.sequence_length is None:
        yield Problem("sequence_length", None, "is the longest row in tokens, and is not given", "e.g. 2048")
    if config.total_epochs is not None and config.max_steps != BaseConfig.max_steps:
        message = f"and max_steps {config.max_steps} are both given"
        yield Problem("total_epochs", config.total_epochs, message, "remove one of the two")
    training = config.actor_train.training_args
    if training.warmup_ratio > 0 and training.warmup_steps > 0:
        message = f"warmup_steps {training.warmup_steps} is given too"
        yield Problem("actor_train.training_args.warmup_ratio", training.warmup_ratio, message, "keep one of them")
    if config.pair_loss is not None:
        yield from _pairs(config, config.pair_loss)
    elif config.teachers:
        yield from _shares(config)


def _unread(config: RowsConfig) -> Iterator[Problem]:
    """Keys of other pipelines that are written, and would do nothing."""
    what, read = config.kind.upper(), OF_EVERY_PIPELINE | (OF_ENGINES if config.has_engines else set())
    read |= {"teachers", "distillation"} if config.pair_loss is None else set()
    for item in fields(PPOConfig):
        value = getattr(config, item.name)
        if item.name not in read and value != default_of(item):
            shown = value if isinstance(value, bool | int | float | str) else "given"
            message = f"is not read: {what} trains rows as they stand, and generates nothing"
            fix = "actor_train.training_args.per_device_train_batch_size" if item.name == "rollout_batch_size" else "remove it"
            if item.name in OF_ENGINES:
                fix = "validation.generate_during_eval: the number of rows whose questions the policy answers, or remove it"
            yield Problem(item.name, shown, message, fix)
    for item in fields(ActorTrainConfig):
        if item.name in OF_A_LOSS and (value := getattr(config.actor_train, item.name)) != default_of(item):
            yield Problem(f"actor_train.{item.name}", value, f"is not read: {what} has a loss of its own", "remove it")
    if config.pair_loss is None and config.reference is not None:
        yield Problem("reference", "given", "is not read: SFT has no reference", "remove it")


def _data(config: RowsConfig) -> Iterator[Problem]:
    for name, each in config.data_sources.items():
        yield from row_data_problems(f"{name}.data_args", each)
    for key in ("curriculum", "pass_rate_curriculum"):
        if getattr(config.actor_train.data_args, key) is not None:
            yield Problem(f"actor_train.data_args.{key}", "given", "is for prompts", "remove it")


def _shares(config: RowsConfig) -> Iterator[Problem]:
    """Problems of the loss, of which teachers have a share."""
    for name, teacher in config.teachers.items():
        weight = teacher.opd_kl_coef
        if max(weight if isinstance(weight, list) else [weight], default=0) > 1:
            message = "is the share of the divergence in the loss, and the tokens of the rows have the rest"
            yield Problem(f"teachers.{name}.opd_kl_coef", weight, message, "from 0 to 1")
    if config.distillation.beta is None:
        message = "the policy did not sample the rows, so log-probs of their tokens are no estimate of a divergence"
        fix = "forward_kl, reverse_kl or js_divergence"
        yield Problem("distillation.kd_objective", config.distillation.kd_objective, message, fix)


def _answers(config: RowsConfig) -> Iterator[Problem]:
    """Problems of the answers that the policy gives at evaluations."""
    if config.actor_infer.generating_args != GeneratingArguments():
        fix = "validation.generating_args"
        yield Problem("actor_infer.generating_args", "given", "is not read: nothing that is trained is generated", fix)
    for name, each in config.validations.items():
        key, args, rows = set_key(name), each.generating_args, each.generate_during_eval
        written, count = config.rollout_log_per_step, rows * (args.num_return_sequences or 1)
        if not rows and args != RowSetConfig().generating_args:
            yield Problem(
                f"{key}.generating_args", "given", "is not read: generate_during_eval is 0", "the number of rows, or remove it"
            )
        if rows and config.loss_on == "all" and each.data_args.template != "none":
            message = "loss_on: all does not tell answers from questions"
            yield Problem(f"{key}.generate_during_eval", rows, message, "0, or sft.loss_on: assistant")
        if written != "all" and count > written:
            message = f"its {count:,} answers are not written: rollout_log_per_step is {written:,}"
            yield Problem(f"{key}.generate_during_eval", rows, message, f"rollout_log_per_step: {count}, or fewer rows")


def row_data_problems(key: str, data: DataArguments) -> Iterator[Problem]:
    """Problems of files with rows that are trained, or evaluated, as they stand."""
    yield from data_problems(key, data)
    if data.template == "chatml":
        yield Problem(f"{key}.template", "chatml", "writes prompts alone", "native, or none")
    if data.continue_final_message:
        yield Problem(f"{key}.continue_final_message", True, "is not read: an answer at the end of a row is trained", "remove it")


def _pairs(config: RowsConfig, keys: PairLossConfig) -> Iterator[Problem]:
    if config.loss_agg_mode != "token-mean":
        message = "is not read: the loss is the mean over pairs"
        yield Problem("loss_agg_mode", config.loss_agg_mode, message, "remove it")
    yield from pair_loss_problems("dpo", keys)
    if config.uses_reference and config.reference is None:
        message = f"loss {keys.loss} compares with the model that training starts from"
        yield Problem("reference", MISSING_VALUE, message, "reference: {}, or loss: simpo")


def pair_loss_problems(key: str, keys: PairLossConfig) -> Iterator[Problem]:
    usual = PairLossConfig()
    for name, read_by in (("margin", ("simpo",)), ("label_smoothing", ("sigmoid", "simpo"))):
        if keys.loss not in read_by and (value := getattr(keys, name)) != getattr(usual, name):
            yield Problem(f"{key}.{name}", value, f"loss {keys.loss} does not read it", f"0, or loss: {' or '.join(read_by)}")
