"""Rules of pairs that are made on line: keys that their loss does not read are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from roll.core.configs.derived import optimizer_steps
from roll.core.configs.fields import default_of
from roll.core.configs.problems import Problem
from roll.core.configs.rlvr import RLVRConfig
from roll.plan.rules.rows_rules import OF_A_LOSS, pair_loss_problems

UNREAD = frozenset(
    (
        *("adv_estimator", "reward_clip", "gamma", "add_token_level_kl", "whiten_rewards", "advantage_clip", "whiten_advantages"),
        *("entropy_loss_coef", "use_kl_loss", "kl_loss_coef", "train_infer_correction", "old_logprobs", "teachers", "rollout"),
        *("norm_mean_type", "norm_std_type", "raft_best", "max_len_mask", "error_max_len_clip", "difficulty_mask"),
        *("ppo_epochs", "train_on_arrival", "pg_clip", "dual_clip_c"),
    )
)


def pair_problems(config: RLVRConfig) -> Iterator[Problem]:
    keys = config.online_pairs
    if keys is None or not config.trains:
        return
    yield from pair_loss_problems("online_pairs", keys)
    for item in fields(config):
        if item.name in UNREAD and (value := getattr(config, item.name)) != default_of(item):
            shown = value if isinstance(value, bool | int | float | str) else "given"
            yield Problem(item.name, shown, "is not read with online_pairs, whose loss is of pairs", "remove it")
    for item in fields(config.actor_train):
        if item.name in OF_A_LOSS and (value := getattr(config.actor_train, item.name)) != default_of(item):
            yield Problem(f"actor_train.{item.name}", value, "is not read: online_pairs has a loss of its own", "remove it")
    if config.loss_agg_mode != "token-mean":
        message = "the loss is the mean over pairs, as the weights of tokens have it"
        yield Problem("loss_agg_mode", config.loss_agg_mode, message, "token-mean")
    if config.group_size < 2:
        yield Problem("num_return_sequences_in_group", config.group_size, "one response makes no pair", "2 or more")
    if config.actor_infer.generating_args.truncates:
        message = "the loss of pairs is about whole distributions"
        yield Problem("actor_infer.generating_args", "top_p or top_k", message, "top_p: 1 and top_k: 0")
    if (steps := optimizer_steps(config, config.actor_train)) > 1:
        message = f"a step of {config.rollouts_per_step:,} responses would be {steps:,} optimiser steps, and weights hold for one"
        key, size = "actor_train.training_args.gradient_accumulation_steps", config.actor_train.training_args
        yield Problem(key, size.gradient_accumulation_steps, message, f"{size.gradient_accumulation_steps * steps}")
