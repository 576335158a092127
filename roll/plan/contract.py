"""The part of a configuration that all processes of a run must share."""

from __future__ import annotations

from roll.core.configs.plain import JsonObject
from roll.core.configs.ppo import PPOConfig


def contract(config: PPOConfig) -> JsonObject:
    """Returns these values by key. The number of steps is the trainer's alone."""
    return {
        "rollout_batch_size": config.rollout_batch_size,
        "samples of a group": config.group_size,
        "async_generation_ratio": config.async_generation_ratio,
        "staleness_policy": config.staleness_policy,
        "weight_push_interval": config.weight_push_interval,
        "model_update_transport": config.model_update_transport,
        "sequence_length": config.lengths().sequence,
        "actor_infer.generating_args.temperature": config.actor_infer.generating_args.temperature,
        "actor_train.router_replay.mode": config.actor_train.router_replay.mode,
    }
