"""Rules of prompts and observations with images: roles that see them, and everything that does not."""

from __future__ import annotations

from collections.abc import Iterator

from roll.core.configs.engines import engines_that
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import Problem

TRAINERS = ("fsdp2_train", "fsdp2_infer", "deepspeed_train", "deepspeed_infer")
"""Back ends that train on images, or score them."""


def image_problems(config: PPOConfig) -> Iterator[Problem]:
    shown = {key: data for key, data in config.data_sources.items() if data.images is not None}
    for key, data in shown.items():
        if config.from_rows:
            message = "is read by RLVR and agents alone: SFT and DPO show text"
            yield Problem(f"{key}.data_args.images", "given", message, "remove it, and rows with images")
        elif data.template != "native":
            message = "shows no images: only the model's own chat template knows their marks"
            yield Problem(f"{key}.data_args.template", data.template, message, "native, or remove data_args.images")
    if shown and not config.from_rows:
        yield from _blind(config)
    if not shown:
        for name, role in config.roles().items():
            if role.model_args.freeze_vision:
                yield Problem(f"{name}.model_args.freeze_vision", True, "nothing is seen: no data_args.images", "remove it")


def _blind(config: PPOConfig) -> Iterator[Problem]:
    """Yields problems of roles and parts that cannot take images."""
    for name, role in config.roles().items():
        chosen, seeing = role.strategy_args.strategy_name, engines_that("images") if name == "actor_infer" else TRAINERS
        if chosen not in seeing:
            key = f"{name}.strategy_args.strategy_name"
            kind = chosen.rpartition("_")[2]
            fix = " or ".join([each for each in seeing if each.endswith(f"_{kind}")] or seeing)
            fix += ", without its strategy_config" if role.strategy_args.strategy_config else ""
            yield Problem(key, chosen, "does not see the images of data_args.images", fix)
    adapters = config.actor_train.model_args
    updates = adapters.lora_update if adapters.lora_target is not None else "merged"
    refused = (
        ("rollout", "given", getattr(config, "rollout", None) is not None, "a rollout of your own shows messages of text"),
        ("warm_start", "given", config.warm_start is not None, "rows with answers are text"),
        (
            "teachers",
            "given",
            any(teacher.endpoint or teacher.hint_key for teacher in config.teachers.values()),
            "hints, and what a served one (endpoint) is sent, are text",
        ),
        ("actor_train.router_replay.mode", "R3", config.actor_train.router_replay.mode == "R3", "no mixture of experts sees"),
        (
            *("actor_train.model_args.lora_update", updates, updates != "merged"),
            "engines take merged weights of a model that sees: lora_update: merged",
        ),
    )
    for key, value, given, why in refused:
        if given:
            yield Problem(key, value, f"does not go with data_args.images: {why}", "leave one of the two out")
    for domain, reward in config.reward_configs.items():
        for name in reward.models:
            message = "does not go with data_args.images: the model that judges reads text"
            yield Problem(f"rewards.{domain}.{name}", "given", message, "a rule, or a service of your own")
