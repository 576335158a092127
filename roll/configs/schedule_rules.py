"""Rules of the schedule: how far rollouts run ahead, when weights travel, and what is trained again."""

from __future__ import annotations

import math
from collections.abc import Iterator

from roll.configs.pipeline_depth import deepest_pipeline
from roll.configs.ppo import PPOConfig
from roll.configs.problems import Problem


def schedule_problems(config: PPOConfig) -> Iterator[Problem]:
    depth, ratio = config.async_pipeline_depth, config.async_generation_ratio
    if depth != "auto" and depth > ratio:
        yield Problem(
            "async_pipeline_depth", depth, f"{depth:g} > async_generation_ratio {ratio:g}", f"auto, or at most {ratio:g}"
        )
    push, pull = config.weight_push_interval, config.weight_pull_interval
    if push - 1 > ratio:
        message = f"{push} batches are trained between two versions, and async_generation_ratio {ratio:g} lets only "
        message += f"{1 + ratio:g} start under one: the trainer would wait forever"
        fix = f"at most {math.floor(ratio) + 1}, or async_generation_ratio: {push - 1}"
        yield Problem("weight_push_interval", push, message, fix)
    else:
        if depth != "auto" and depth < push - 1:
            message = f"{depth:g} < {push - 1}: with weight_push_interval {push} the trainer would wait forever"
            yield Problem("async_pipeline_depth", depth, message, f"auto, or at least {push - 1}")
        if pull and push - 1 == ratio:
            message = f"has no effect: with weight_push_interval {push} and async_generation_ratio {ratio:g} no group starts "
            message += "before the engines serve the newest version"
            yield Problem("weight_pull_interval", pull, message, f"0, or an async_generation_ratio above {ratio:g}")
    if config.staleness_policy == "drop" and ratio == 0:
        yield Problem("staleness_policy", "drop", "has nothing to drop at async_generation_ratio 0", "use wait")
    yield from _replay(config)
    if config.groups_order == "newest" and config.staleness_policy == "wait":
        message = "with staleness_policy wait every group is trained: taking the newest first makes the others older by as much"
        yield Problem("groups_order", "newest", message, "staleness_policy: drop, or fifo")
    yield from _fallback(config)


def _fallback(config: PPOConfig) -> Iterator[Problem]:
    key, after = "synchronous_after_failures", config.synchronous_after_failures
    if not after:
        return
    if config.mode != "both" or config.groups_address is not None:
        yield Problem(key, after, "groups in a database may be started by other processes, too", "0, or groups in memory")
    if config.async_generation_ratio == 0:
        yield Problem(key, after, "has no effect at async_generation_ratio 0", "0")
    if (push := config.weight_push_interval) > 1:
        message = f"with weight_push_interval {push} the trainer would wait forever in the synchronous schedule"
        yield Problem(key, after, message, "0, or weight_push_interval: 1")


def _replay(config: PPOConfig) -> Iterator[Problem]:
    reuse, ratio, push = config.max_reuse, config.async_generation_ratio, config.weight_push_interval
    if reuse == 1:
        return
    depth, deepest = config.async_pipeline_depth, deepest_pipeline(ratio, push, reuse)
    fix = f"1, or async_generation_ratio: {max(push + 1, reuse - 1)}"
    if reuse > (steps := math.ceil(ratio) + 1):
        message = f"with async_generation_ratio {ratio:g} no more than {steps} step{'s' * (steps > 1)} can train a group"
        yield Problem("max_reuse", reuse, message, fix)
    elif push >= ratio:
        message = f"has no effect: with weight_push_interval {push} and async_generation_ratio {ratio:g} rollouts that run ahead "
        yield Problem("max_reuse", reuse, message + "need every place in a step before they are too old", fix)
    elif depth != "auto" and depth > deepest:
        message = f"{depth:g} > {deepest:.3g}: groups would become too old to be trained by {reuse} steps (max_reuse)"
        yield Problem("async_pipeline_depth", depth, message, f"auto, or at most {math.floor(100 * deepest) / 100:g}")
