"""Engines and other roles on the same devices: decides `sharing: auto`, and how much of a device the engines get. Pure.

The engines get the memory that the other roles leave at their peak. An engine that takes a share of a device is told which,
unless the configuration names one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from roll.core.configs.derived import derive
from roll.core.configs.engines import engine_of
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import ConfigError, Problem
from roll.core.configs.sizes import GIB
from roll.plan import memory
from roll.plan.counts import role_plans
from roll.plan.memory import Model, element_bytes, total
from roll.plan.memory_plan import CONTEXT, GRAPHS, RoleMemories, device_memory

LEAST_REQUESTS = 4
"""The KV cache has room for one in so many of an engine's requests at full length: few have that length at the same time, and an
engine lets the others wait."""
C = TypeVar("C", bound=PPOConfig)


def with_sharing(
    config: C, models: Mapping[str, Model | str], accelerators: bool, device_bytes: int | None
) -> tuple[C, list[str]]:
    """Returns the configuration with `auto` decided and the engine's share of memory, and remarks.

    Args:
        models: by folder; the reason where one is unknown.
        device_bytes: memory of an accelerator, if known.

    Raises:
        ConfigError: the roles have to overlap, and their devices have no room for both.
    """
    roles = config.roles()
    shared = "actor_infer" in roles and any(config.on_devices_of("actor_infer", at_once) for at_once in (False, True))
    if config.sharing == "turns" or not shared:
        return config, []
    overlap = replace(config, sharing="overlap")
    if config.sharing == "auto" and config.async_generation_ratio == 0:
        return replace(config, sharing="turns"), []
    if not accelerators:
        return overlap, []
    unknown = [note for role in roles.values() if isinstance(note := models[config.model_folder(role)], str)]
    if device_bytes is None or unknown:
        problem = _unknown(config, unknown[0] if unknown else "the memory of a device is not known here")
        fitting = overlap, list[str]()
    else:
        problem, fitting = _lack(overlap, models, device_bytes), _with_share(overlap, models, device_bytes)
    if problem is None:
        return fitting
    if config.sharing == "auto":
        return replace(config, sharing="turns"), [f"sharing auto: turns, for {problem.message}"]
    raise ConfigError([problem])


def _unknown(config: PPOConfig, why: str) -> Problem | None:
    """Returns None if the engine's share is known all the same."""
    strategy = config.actor_infer.strategy_args
    argument = engine_of(strategy.strategy_name).share_argument
    if not argument or argument in strategy.strategy_config:
        return None
    fix = f"turns, or {argument} in actor_infer.strategy_args.strategy_config"
    return Problem("sharing", config.sharing, f"nobody can say what the engines may take: {why}", fix)


def _bytes(config: PPOConfig, models: Mapping[str, Model | str], device_bytes: int) -> tuple[int, int]:
    """Returns the bytes of a device that the other roles leave at their peak, and those that the engine needs at least."""
    plans, derived, workers = role_plans(config), derive(config), config.roles()
    needs = RoleMemories(config, derived, True, device_bytes)
    memories = {plan.role: needs.of(plan, models[config.model_folder(workers[plan.role])]) for plan in plans}
    others = [plan for plan in plans if plan.role != "actor_infer"]
    peaks = device_memory(others, [memories[plan.role] for plan in others])
    (plan,) = [plan for plan in plans if plan.role == "actor_infer"]
    most = max(peak.bytes + CONTEXT for peak in peaks if set(peak.devices) & set(plan.devices))
    model, element = models[config.model_folder(config.actor_infer)], element_bytes(config.actor_infer, True)
    assert not isinstance(model, str)
    if not engine_of(plan.strategy).share_argument:
        return device_bytes - most - CONTEXT, memories["actor_infer"].awake
    fp8, cache_fp8 = config.actor_infer.strategy_args.engine.in_fp8
    (weights,) = memory.engine_weights(model, element, shadow=False, tensor=plan.tensor, fp8=fp8)
    requests = -(-derived.requests_per_engine // LEAST_REQUESTS)
    cache = memory.kv_cache(model, requests, derived.sequence_length, 1 if cache_fp8 else element)
    left = device_bytes - most - CONTEXT - GRAPHS - total(needs.borrowed(plan, model, element))
    return left, weights.bytes + cache.bytes // plan.tensor


def _lack(config: PPOConfig, models: Mapping[str, Model | str], device_bytes: int) -> Problem | None:
    left, needed = _bytes(config, models, device_bytes)
    if needed <= left:
        return None
    names = " and ".join(["actor_infer", *config.on_devices_of("actor_infer", at_once=True)])
    message = (
        f"{names} need {(needed - left) / GIB:.1f} GiB more than the {device_bytes / GIB:.1f} GiB of a device at the same time"
    )
    return Problem("sharing", config.sharing, message, f"{_smaller(config, models, device_bytes)}turns, or devices of their own")


def _smaller(config: PPOConfig, models: Mapping[str, Model | str], device_bytes: int) -> str:
    """Returns a fix: the largest micro-batch of the trainer, halved as often as it takes, with which both fit."""
    tokens, least = config.actor_train.max_tokens_per_microbatch_in_train, derive(config).sequence_length
    while (tokens := tokens // 2) >= least:
        train = replace(config.actor_train, max_tokens_per_microbatch_in_train=tokens)
        left, needed = _bytes(replace(config, actor_train=train), models, device_bytes)
        if needed <= left:
            return f"overlap with actor_train.max_tokens_per_microbatch_in_train: {tokens}, "
    return ""


def _with_share(config: C, models: Mapping[str, Model | str], device_bytes: int) -> tuple[C, list[str]]:
    chosen = config.actor_infer.strategy_args
    engine = engine_of(chosen.strategy_name)
    argument, most = engine.share_argument, engine.memory_share
    if not argument or most is None or argument in chosen.strategy_config:
        return config, []
    share = int(100 * min(most, _bytes(config, models, device_bytes)[0] / device_bytes)) / 100
    strategy = replace(chosen, strategy_config={**chosen.strategy_config, argument: share})
    said = f"actor_infer.strategy_args.strategy_config.{argument} = {share:g}: the memory that the other roles leave"
    return replace(config, actor_infer=replace(config.actor_infer, strategy_args=strategy)), [said]
