"""Doubts about a configuration that is allowed, but hardly meant: a run starts with it all the same, and says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from roll.core.configs.derived import old_logprobs_recomputed, optimizer_batch_size, optimizer_steps
from roll.core.configs.losses import POLICY_LOSSES, ISWeightConfig, PolicyLossKnobs
from roll.core.configs.ppo import PPOConfig, set_key
from roll.core.configs.problems import Note
from roll.core.configs.rlvr import RLVRConfig
from roll.core.configs.worker import TrainedConfig
from roll.plan.counts import validations
from roll.plan.rules.metric_rules import among, of_validations

HIGHEST_RATE = 0.01
"""Thirty times the rates of the tiny embedded models, 10,000 times those of pretrained ones."""
USUAL_RATES = "1.0e-6 is usual where all weights of a pretrained model are trained, 1.0e-5 to 1.0e-4 for LoRA"


def doubts(config: PPOConfig) -> Iterator[Note]:
    if config.from_rows:
        yield from _validation(config)
        return
    if config.trains:
        yield from _learning_rates(config)
        yield from _clip(config)
        yield from _uncorrected(config)
        yield from _unread_by_the_loss(config)
        yield from _corrections_that_are_off(config)
        yield from _kl_that_is_off(config)
    yield from _validation(config)
    if isinstance(config, RLVRConfig):
        yield from _of_responses(config)
    elif config.trains:
        yield from _begun_batch(config)


def _of_responses(config: RLVRConfig) -> Iterator[Note]:
    if config.has_engines:  # an agent's answer may be one token: a move
        yield from _response_length(config)
    if config.trains:
        yield from _warm_up(config)
        yield from _never_so_long(config)
        yield from _trained_and_validated(config)
        yield from _trained_twice(config)


def _learning_rates(config: PPOConfig) -> Iterator[Note]:
    for name, role in config.roles().items():
        if isinstance(role, TrainedConfig) and (rate := role.training_args.learning_rate) > HIGHEST_RATE:
            message = f"is far above what a policy gradient stands, and the first steps may ruin the model: {USUAL_RATES}"
            yield Note(f"{name}.training_args.learning_rate", rate, message)


def _warm_up(config: RLVRConfig) -> Iterator[Note]:
    """Yields a note where `max_steps` ends the run before the end of its warm-up."""
    training = config.actor_train.training_args
    steps = config.max_steps * config.ppo_epochs * optimizer_steps(config, config.actor_train)
    if config.total_epochs is None and training.warmup_steps > steps:
        message = f"the run has {steps:,} optimiser steps: the learning rate never gets to {training.learning_rate:g}"
        yield Note("actor_train.training_args.warmup_steps", training.warmup_steps, message)


def _begun_batch(config: PPOConfig) -> Iterator[Note]:
    batch, episodes = optimizer_batch_size(config.actor_train), config.rollouts_per_step
    if episodes % batch:
        steps = optimizer_steps(config, config.actor_train)
        trained = f"in {steps:,} optimiser step{'s of nearly equal size' if steps > 1 else ''}"
        message = f"{episodes:,} episodes are no whole number of optimiser batches of {batch:,}; the samples of their turns"
        yield Note("rollout_batch_size", config.rollout_batch_size, f"{message}, however many, are trained {trained}")


def _clip(config: PPOConfig) -> Iterator[Note]:
    if (config.pg_clip[0] if isinstance(config.pg_clip, list) else config.pg_clip) >= 1:
        yield Note("pg_clip", config.pg_clip, "is no percentage: no ratio is clipped from below; 0.2 is usual")


def _uncorrected(config: PPOConfig) -> Iterator[Note]:
    """Yields a note on a loss without correction for old samples. Where log-probs are recomputed, every loss has one."""
    variant, ratio = config.actor_train.pg_variant, config.async_generation_ratio
    if ratio > 0 and variant in POLICY_LOSSES and POLICY_LOSSES[variant].uncorrected and not old_logprobs_recomputed(config)[0]:
        message = f"does not correct for old samples, and async_generation_ratio is {ratio:g}: choose one that tolerates them"
        yield Note("actor_train.pg_variant", variant, message)


def _unread_by_the_loss(config: PPOConfig) -> Iterator[Note]:
    """A key of a loss bears its name. A user's own loss may read any of them."""
    variant = config.actor_train.pg_variant
    if (loss := POLICY_LOSSES.get(variant)) is None:
        return
    message = f"does nothing: pg_variant {variant} does not read it"
    for item in fields(PolicyLossKnobs):
        value = getattr(config.actor_train, item.name)
        if value != item.default and item.name.partition("_")[0] != variant.partition("_")[0]:
            yield Note(f"actor_train.{item.name}", value, message)
    if config.dual_clip_c is not None and "clipfrac_dual" not in loss.metrics:
        yield Note("dual_clip_c", config.dual_clip_c, message)


def _corrections_that_are_off(config: PPOConfig) -> Iterator[Note]:
    correction, key = config.train_infer_correction, "train_infer_correction"
    if not correction.is_weight.enabled and correction.is_weight != ISWeightConfig():
        yield Note(f"{key}.is_weight.enabled", False, "so the other keys of is_weight do nothing; write enabled: true")
    if correction.filters and not any(each.enabled for each in correction.filters):
        off = f"none of the {len(correction.filters)} acts" if len(correction.filters) > 1 else "it does not act"
        yield Note(f"{key}.filters[0].enabled", False, f"{off}; write enabled: true, or remove it")


def _kl_that_is_off(config: PPOConfig) -> Iterator[Note]:
    of_tokens = [item for item in fields(config) if item.name in ("kl_penalty", "init_kl_coef", "kl_horizon")]
    for item in of_tokens if not config.add_token_level_kl else ():
        if (value := getattr(config, item.name)) != item.default:
            yield Note(item.name, value, "does nothing: add_token_level_kl is false")


def _response_length(config: RLVRConfig) -> Iterator[Note]:
    message = "every answer is cut off behind its first token: none can say more, nor end by itself"
    generating = config.actor_infer.generating_args.max_new_tokens
    if config.lengths().response == 1:
        key = "sequence_length" if config.response_length is None else "response_length"
        yield Note(key, getattr(config, key), message)
    elif generating == 1:
        yield Note("actor_infer.generating_args.max_new_tokens", generating, message)


def _never_so_long(config: RLVRConfig) -> Iterator[Note]:
    threshold, longest = config.error_max_len_threshold, config.lengths().response
    if threshold is not None and threshold > longest:
        yield Note("error_max_len_threshold", threshold, f"does nothing: no response has more than {longest:,} tokens")


def _trained_and_validated(config: RLVRConfig) -> Iterator[Note]:
    trained = config.actor_train.data_args
    for name, each in config.validations.items():
        if both := sorted({*trained.files} & {*each.data_args.files}):
            message = f"{both[0]} is trained on, too: the validation does not say what the policy does with other prompts"
            yield Note(f"{set_key(name)}.data_args.file_name", each.data_args.file_name, message)


def _trained_twice(config: RLVRConfig) -> Iterator[Note]:
    if (twice := config.actor_train.data_args.named_twice) is not None:
        message = f"names {twice} twice: its prompts come twice as often as others"
        yield Note("actor_train.data_args.file_name", config.actor_train.data_args.file_name, message)


def _validation(config: PPOConfig) -> Iterator[Note]:
    if config.eval_steps is not None and not config.validations:
        message = f"does nothing: there is no validation set; add {config.validation_block}, or remove the key"
        yield Note("eval_steps", config.eval_steps, message)
    stopping, count = config.early_stopping, validations(config.max_steps, config.steps_between_validations)
    if stopping is not None and stopping.patience >= count and among(stopping.metric, [*of_validations(config)]):
        message = f"does nothing: the run has {count} validations, and the first is no loss; less, or smaller eval_steps"
        yield Note("early_stopping.patience", stopping.patience, message)
