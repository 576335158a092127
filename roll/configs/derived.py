"""Numbers that follow from a configuration. The user's own are never overwritten."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from roll.configs.arguments import HFInferConfig
from roll.configs.base import BaseConfig
from roll.configs.pg_variants import old_logprobs_recomputed
from roll.configs.rlvr import RLVRConfig


@dataclass(frozen=True, slots=True)
class Derived:
    """All lengths in tokens."""

    prompt_length: int
    response_length: int
    sequence_length: int
    max_new_tokens: int
    """Longest training response: that of `actor_infer.generating_args`, else `response_length`."""
    val_max_new_tokens: int
    val_num_return_sequences: int
    samples_per_step: int
    optimizer_batch_size: int
    """Samples of one optimiser step over all ranks."""
    total_optimizer_steps: int
    staleness_bound: int
    """No token is trained more than this many versions after it was sampled: ⌈async_generation_ratio⌉."""
    requests_per_engine: int
    """`max_running_requests`, or fewer where the engine's KV cache holds fewer whole sequences."""
    pg_clip_low: float
    pg_clip_high: float
    recompute_old_logprobs: bool
    """Log-probs are recomputed at the start of a step, and ratios taken to them."""
    old_logprobs_reason: str
    domain_shares: Mapping[str, float]
    """Share of each domain in a batch; they sum to 1."""
    tag_to_domain: Mapping[str, str]
    trackers: tuple[str, ...]
    """Trackers besides metrics.jsonl."""
    run_dir: str


def lengths(config: BaseConfig) -> tuple[int, int, int]:
    """Prompt, response and sequence length. Raises `ValueError` if neither of the last two is given or they do not fit."""
    prompt, response, sequence = config.prompt_length, config.response_length, config.sequence_length
    if response is None and sequence is None:
        raise ValueError("response_length or sequence_length is needed")
    response = response if response is not None else (sequence or 0) - prompt
    sequence = sequence if sequence is not None else prompt + response
    if response < 1:
        raise ValueError(f"sequence_length {sequence} - prompt_length {prompt} = {response} leaves no room for a response")
    if prompt + response > sequence:
        raise ValueError(
            f"prompt_length {prompt} + response_length {response} = {prompt + response} > sequence_length {sequence}"
        )
    return prompt, response, sequence


def optimizer_batch_size(config: RLVRConfig) -> int:
    """Samples of one optimiser step: per_device_train_batch_size x gradient_accumulation_steps x devices of actor_train."""
    training = config.actor_train.training_args
    return training.per_device_train_batch_size * training.gradient_accumulation_steps * config.actor_train.world_size


def derive(config: RLVRConfig) -> Derived:
    """For a configuration without problems (`check_config`)."""
    prompt_length, response_length, sequence_length = lengths(config)
    samples = config.rollout_batch_size * config.num_return_sequences_in_group
    optimizer_batch = optimizer_batch_size(config)
    optimizer_steps = samples // optimizer_batch * config.ppo_epochs
    validation = config.validation.generating_args if config.validation else None
    recompute, reason = old_logprobs_recomputed(config)
    return Derived(
        prompt_length=prompt_length,
        response_length=response_length,
        sequence_length=sequence_length,
        max_new_tokens=config.actor_infer.generating_args.max_new_tokens or response_length,
        val_max_new_tokens=(validation.max_new_tokens if validation else None) or response_length,
        val_num_return_sequences=(validation.num_return_sequences if validation else None) or 1,
        samples_per_step=samples,
        optimizer_batch_size=optimizer_batch,
        total_optimizer_steps=optimizer_steps * config.max_steps,
        staleness_bound=math.ceil(config.async_generation_ratio),
        requests_per_engine=_requests_per_engine(config, sequence_length),
        pg_clip_low=config.pg_clip_low if config.use_pg_clip_range else config.pg_clip,
        pg_clip_high=config.pg_clip_high if config.use_pg_clip_range else config.pg_clip,
        recompute_old_logprobs=recompute,
        old_logprobs_reason=reason,
        domain_shares=_domain_shares(config),
        tag_to_domain={tag: domain for domain, reward in config.rewards.items() for tag in reward.tags(domain)},
        trackers=tuple(
            name for name in ([config.track_with] if isinstance(config.track_with, str) else config.track_with) if name != "none"
        ),
        run_dir=str(PurePath(config.output_dir) / config.exp_name),
    )


def _requests_per_engine(config: RLVRConfig, sequence_length: int) -> int:
    options = config.actor_infer.strategy_args.options
    if isinstance(options, HFInferConfig) and options.kv_cache_tokens is not None:
        return min(config.max_running_requests, options.kv_cache_tokens // sequence_length)
    return config.max_running_requests


def _domain_shares(config: RLVRConfig) -> dict[str, float]:
    weights = config.actor_train.data_args.domain_interleave_probs or dict.fromkeys(config.rewards, 1.0)
    total = sum(weights.values())
    return {domain: weight / total for domain, weight in weights.items()}
