"""Rules of the schedule: rollouts ahead, transport of weights, groups trained again, and `train_on_arrival`."""

from __future__ import annotations

import math
from collections.abc import Iterator

from roll.core.configs.base import TRANSPORTS_APART, BaseConfig
from roll.core.configs.derived import optimizer_batch_size
from roll.core.configs.estimators import ESTIMATORS
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import Problem
from roll.core.configs.staleness import StalenessTuningConfig, deepest_pipeline, staleness_bound
from roll.plan.rules.addresses import host_and_port


def schedule_problems(config: PPOConfig) -> Iterator[Problem]:
    """An evaluation has no schedule: its file may be that of a run of any mode, as `roll eval` finds it in the run's folder."""
    if config.only_evaluates:
        return
    for rule in (_ahead, _tuning, _reuse, _fallback, _arrival, _halves, _silence, _transport, _sharing):
        yield from rule(config)


def _ahead(config: PPOConfig) -> Iterator[Problem]:
    depth, ratio = config.async_pipeline_depth, config.async_generation_ratio
    if depth != "auto" and depth > ratio:
        deepest = deepest_pipeline(ratio, config.weight_push_interval, config.max_reuse)
        fix = f"auto, or at most {math.floor(100 * deepest) / 100:g}"
        yield Problem("async_pipeline_depth", depth, f"{depth:g} > async_generation_ratio {ratio:g}", fix)
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
        yield Problem("staleness_policy", "drop", "has nothing to drop at async_generation_ratio 0", "wait")
    if config.groups_order == "newest" and config.staleness_policy == "wait":
        message = "with staleness_policy wait every group is trained: taking the newest first makes the others older by as much"
        yield Problem("groups_order", "newest", message, "fifo, or staleness_policy: drop" if ratio else "fifo")


def _tuning(config: PPOConfig) -> Iterator[Problem]:
    tuning, key = config.staleness_tuning, "staleness_tuning"
    useless = config.async_generation_ratio <= config.weight_push_interval - 1
    if tuning.depth and config.async_pipeline_depth != "auto":
        fix = "false" if useless else "false, or async_pipeline_depth: auto"
        yield Problem(f"{key}.depth", True, f"async_pipeline_depth {config.async_pipeline_depth:g} is a constant", fix)
    elif tuning.depth and useless:
        message = f"has no effect: at async_generation_ratio {config.async_generation_ratio:g} rollouts cannot run less far ahead"
        yield Problem(f"{key}.depth", True, message, f"false, or async_generation_ratio: {config.weight_push_interval}")
    if tuning.target_ess != StalenessTuningConfig().target_ess and not (tuning.depth or tuning.learning_rate):
        message = "has no effect: nothing follows the ESS"
        yield Problem(f"{key}.target_ess", tuning.target_ess, message, "learning_rate: true or depth: true beside it")


def _fallback(config: PPOConfig) -> Iterator[Problem]:
    key, after = "synchronous_after_failures", config.synchronous_after_failures
    if not after:
        return
    if not config.has_both_sides or config.groups_address is not None:
        yield Problem(key, after, "groups in a database may be started by other processes, too", "0, or groups in memory")
    if config.async_generation_ratio == 0:
        yield Problem(key, after, "has no effect at async_generation_ratio 0", "0")
    if (push := config.weight_push_interval) > 1:
        message = f"with weight_push_interval {push} the trainer would wait forever in the synchronous schedule"
        yield Problem(key, after, message, "0, or weight_push_interval: 1")


def _reuse(config: PPOConfig) -> Iterator[Problem]:
    reuse, ratio, push = config.max_reuse, config.async_generation_ratio, config.weight_push_interval
    if reuse == 1:
        return
    depth, deepest = config.async_pipeline_depth, deepest_pipeline(ratio, push, reuse)
    fix = f"1, or async_generation_ratio: {max(push + 1, reuse - 1)}"
    if reuse > (steps := staleness_bound(ratio) + 1):
        message = f"with async_generation_ratio {ratio:g} no more than {steps} step{'s' * (steps > 1)} can train a group"
        yield Problem("max_reuse", reuse, message, fix)
    elif push >= ratio:
        message = f"has no effect: with weight_push_interval {push} and async_generation_ratio {ratio:g} rollouts that run ahead "
        yield Problem("max_reuse", reuse, message + "need every place in a step before they are too old", fix)
    elif depth != "auto" and depth > deepest:
        message = f"{depth:g} > {deepest:.3g}: groups would become too old to be trained by {reuse} steps (max_reuse)"
        yield Problem("async_pipeline_depth", depth, message, f"auto, or at most {math.floor(100 * deepest) / 100:g}")


WHOLE = "looks at the whole batch, which train_on_arrival trains before it is complete"
BACK_END = "fsdp2_train"


def _arrival(config: PPOConfig) -> Iterator[Problem]:
    """Yields problems of `train_on_arrival`: anything that needs all groups of the batch."""
    if config.train_on_arrival and not config.only_explores:
        for rule in (_one_step, _estimator, _normalisation, _devices):
            yield from rule(config)


def _one_step(config: PPOConfig) -> Iterator[Problem]:
    strategy = config.actor_train.strategy_args.strategy_name
    if strategy != BACK_END:
        key, message = "actor_train.strategy_args.strategy_name", "does not add up gradients over calls (train_on_arrival)"
        yield Problem(key, strategy, message, BACK_END)
    if config.max_reuse > 1:
        message = "train_on_arrival begins a step with the groups that are ready, and trains no group again"
        yield Problem("max_reuse", config.max_reuse, message, "1, or train_on_arrival: false")
    if config.ppo_epochs > 1:
        message = f"train_on_arrival passes over each group once: {config.ppo_epochs} > 1"
        yield Problem("ppo_epochs", config.ppo_epochs, message, "1, or train_on_arrival: false")
    batch, samples = optimizer_batch_size(config.actor_train), config.rollouts_per_step
    if 0 < batch < samples and samples % batch == 0:
        training = config.actor_train.training_args
        message = f"train_on_arrival takes one optimiser step a batch: {batch} < {samples} samples"
        fix = f"{training.gradient_accumulation_steps * samples // batch}"
        yield Problem("actor_train.training_args.gradient_accumulation_steps", training.gradient_accumulation_steps, message, fix)


def _estimator(config: PPOConfig) -> Iterator[Problem]:
    name, entry = config.adv_estimator, config.estimator
    if name not in ESTIMATORS:
        yield Problem(
            "adv_estimator",
            name,
            "train_on_arrival cannot know whether your function compares groups",
            "grpo, or another built-in one",
        )
    elif entry.whitened or entry.of_batch:
        yield Problem("adv_estimator", name, WHOLE, "grpo, or train_on_arrival: false")
    elif entry.needs_critic:
        yield Problem("adv_estimator", name, "train_on_arrival trains no critic", "grpo, or train_on_arrival: false")
    for key in ("whiten_advantages", "whiten_rewards"):
        if getattr(config, key):
            yield Problem(key, True, WHOLE, "false")


def _normalisation(config: PPOConfig) -> Iterator[Problem]:
    for key, scope in config.reward_scopes.items():
        if scope in ("batch", "running"):
            yield Problem(key, scope, WHOLE, "group")


def _devices(config: PPOConfig) -> Iterator[Problem]:
    roles = {name: set(role.devices) for name, role in config.roles().items()}
    for name, devices in roles.items():
        if name != "actor_train" and devices & roles["actor_train"]:
            message = f"{name} has devices of actor_train, which trains all the time (train_on_arrival)"
            yield Problem(
                "actor_train.device_mapping",
                config.actor_train.device_mapping,
                message,
                "devices of its own, or train_on_arrival: false",
            )


def _halves(config: PPOConfig) -> Iterator[Problem]:
    yield from _served(config)
    if not config.only_explores and config.explorer_name != "explorer":
        yield Problem("explorer_name", config.explorer_name, f"has no effect with mode: {config.mode}", "remove it")
    if "/" in config.explorer_name or config.explorer_name in ("", ".", "..", "trainer"):
        yield Problem("explorer_name", config.explorer_name, "is no name of a folder of its own", "letters, digits, - and _")


def _served(config: PPOConfig) -> Iterator[Problem]:
    key, address, fix = "weights_address", config.weights_address, "the one address at which they reach the trainer's machine"
    if address is None:
        return
    if not config.is_one_of_several or config.model_update_transport == "checkpoint_dir":
        message = f"nothing is served with mode: {config.mode}, model_update_transport: {config.model_update_transport}"
        yield Problem(key, address, message, "remove it")
        return
    try:
        if host_and_port(address)[0] in ("0.0.0.0", "::"):
            yield Problem(key, address, "explorers would not know where to fetch weights", fix)
    except ValueError as error:
        yield Problem(key, address, str(error), f"{fix}: host or host:port")


def _silence(config: PPOConfig) -> Iterator[Problem]:
    """Nobody waits for a sign of life of itself."""
    alone = {"peer_timeout": config.has_both_sides, "member_timeout": config.groups_address is None}
    for key, unread in alone.items():
        if unread and (value := getattr(config, key)) != getattr(BaseConfig, key):
            message = "has no effect with mode: both" + (" without groups_database" if key == "member_timeout" else "")
            yield Problem(key, value, message, "remove it")


def _transport(config: PPOConfig) -> Iterator[Problem]:
    key, every = "weight_anchor_interval", config.weight_anchor_interval
    if every > 1 and config.has_both_sides:
        yield Problem(key, every, "with mode: both all versions are whole: the engines are near the trainer", "remove it")
    elif every > 1 and "actor_log_prob" in config.configured_roles():
        yield Problem(key, every, "actor_log_prob takes whole versions alone", "1, or no actor_log_prob")
    key, transport = "model_update_transport", config.model_update_transport
    if config.is_one_of_several:
        if transport not in TRANSPORTS_APART:
            message = f"needs trainers and engines in one run: mode is {config.mode}"
            yield Problem(key, transport, message, ", or ".join(TRANSPORTS_APART[1:]))
    elif transport == "nccl":
        if shared := sorted(set(config.actor_train.devices) & set(config.actor_infer.devices)):
            why = f"both are on {shared}, and NCCL has one member a device"
            message = f"needs trainers and engines on devices of their own: {why}"
            yield Problem(key, transport, message, "collective, or object_store")
    elif transport == "ipc" and config.num_nodes > 1:
        fix = "object_store, or collective where many engines are on other nodes"
        yield Problem(key, transport, f"needs all roles on one machine: num_nodes is {config.num_nodes}", fix)


def _sharing(config: PPOConfig) -> Iterator[Problem]:
    if config.sharing != "overlap" or "actor_infer" not in config.roles():
        return
    if not config.on_devices_of("actor_infer", at_once=True):
        fix = "turns, or the same device_mapping for both"
        yield Problem("sharing", "overlap", "no other role has devices of the engines", fix)
