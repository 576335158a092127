"""Rules of `train_on_arrival`: what cannot be known of a group before all groups of its batch are there."""

from __future__ import annotations

from collections.abc import Iterator

from roll.configs.agentic import AgenticConfig
from roll.configs.derived import optimizer_batch_size
from roll.configs.estimators import ESTIMATORS
from roll.configs.ppo import PPOConfig
from roll.configs.problems import Problem
from roll.configs.rlvr import RLVRConfig

WHOLE = "looks at the whole batch, which train_on_arrival trains before it is complete"
BACK_END = "fsdp2_train"


def arrival_problems(config: PPOConfig) -> Iterator[Problem]:
    if config.train_on_arrival and config.mode != "explore":
        for rule in (_one_step, _estimator, _normalisation, _devices):
            yield from rule(config)


def _one_step(config: PPOConfig) -> Iterator[Problem]:
    if config.deterministic:
        message = "train_on_arrival adds gradients up in the order in which groups come: timing decides"
        yield Problem("deterministic", True, message, "false, or train_on_arrival: false")
    strategy = config.actor_train.strategy_args.strategy_name
    if strategy != BACK_END:
        key, message = "actor_train.strategy_args.strategy_name", "does not add up gradients over calls (train_on_arrival)"
        yield Problem(key, strategy, message, BACK_END)
    if config.max_reuse > 1:
        message = "train_on_arrival begins a step with whatever is ready: no groups are looked for that were trained before"
        yield Problem("max_reuse", config.max_reuse, message, "1, or train_on_arrival: false")
    if config.ppo_epochs > 1:
        message = f"train_on_arrival passes over each group once: {config.ppo_epochs} > 1"
        yield Problem("ppo_epochs", config.ppo_epochs, message, "1, or train_on_arrival: false")
    try:
        batch, samples = optimizer_batch_size(config.actor_train), config.rollouts_per_step
    except ValueError:  # a device_mapping that cannot be read: reported as such
        return
    if 0 < batch < samples:
        training = config.actor_train.training_args
        message = f"train_on_arrival takes one optimiser step a batch: {batch} < {samples} samples"
        fix = f"{training.gradient_accumulation_steps * samples // batch}"
        yield Problem("actor_train.training_args.gradient_accumulation_steps", training.gradient_accumulation_steps, message, fix)


def _estimator(config: PPOConfig) -> Iterator[Problem]:
    name, entry = config.adv_estimator, ESTIMATORS.get(config.adv_estimator)
    if entry is None:
        yield Problem(
            "adv_estimator", name, "train_on_arrival cannot know whether your function compares groups", "a built-in one"
        )
    elif entry.whitened or entry.of_batch:
        yield Problem("adv_estimator", name, WHOLE, "grpo, or train_on_arrival: false")
    elif entry.needs_critic:
        yield Problem("adv_estimator", name, "train_on_arrival trains no critic", "grpo, or train_on_arrival: false")
    for key in ("whiten_advantages", "whiten_rewards"):
        if getattr(config, key):
            yield Problem(key, True, WHOLE, "false")


def _normalisation(config: PPOConfig) -> Iterator[Problem]:
    scopes: dict[str, str | None] = {}
    if isinstance(config, RLVRConfig):
        scopes = {"norm_mean_type": config.norm_mean_type, "norm_std_type": config.norm_std_type}
    elif isinstance(config, AgenticConfig):
        norm, key = config.reward_normalization, "reward_normalization"
        scopes = {f"{key}.norm_mean_type": norm.norm_mean_type, f"{key}.norm_std_type": norm.norm_std_type}
        if norm.grouping in ("batch", "tags"):
            yield Problem(f"{key}.grouping", norm.grouping, WHOLE, "traj_group_id")
    for key, scope in scopes.items():
        if scope in ("batch", "running"):
            yield Problem(key, scope, WHOLE, "group")


def _devices(config: PPOConfig) -> Iterator[Problem]:
    try:
        roles = {name: set(role.devices) for name, role in config.roles().items()}
    except ValueError:  # a device_mapping that cannot be read: reported as such
        return
    for name, devices in roles.items():
        if name != "actor_train" and devices & roles["actor_train"]:
            message = f"{name} has devices of actor_train, which trains all the time (train_on_arrival)"
            yield Problem("actor_train.device_mapping", config.actor_train.device_mapping, message, "devices of its own")
