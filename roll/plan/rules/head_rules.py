"""Rules of `model_args.head_dtype`, the type of a role's logits, and notes where it does nothing or differs between two roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from roll.core.configs.engines import engine_of
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import Note, Problem
from roll.core.configs.worker import WorkerConfig
from roll.plan.memory import FP32, element_bytes
from roll.plan.model_shape import HEAD, gets_adapters

COMPARED = ("actor_infer", "reference")
"""The roles whose log-probs are compared with the trainer's. Those of `actor_log_prob` must have the trainer's types."""


def head_problems(config: PPOConfig) -> Iterator[Problem]:
    for name, role in config.configured_roles().items():
        model, key = role.model_args, f"{name}.model_args.head_dtype"
        yield from _engine_arguments(name, role)
        if model.head_dtype is None:
            continue
        if name == "critic":
            yield Problem(key, model.head_dtype, "a critic has no logits: its head says values", "remove it")
        elif model.lora_target is not None and gets_adapters(model.lora_target, HEAD):
            message = f"lora_target {model.lora_target} gives the output layer adapters, whose products have the layers' type"
            fix = f"remove it, or {name}.model_args.lora_target: all-linear, which leaves the output layer out"
            yield Problem(key, model.head_dtype, message, fix)


def _engine_arguments(name: str, role: WorkerConfig) -> Iterator[Problem]:
    """Yields an engine's own argument that contradicts the key."""
    path, wanted = engine_of(role.strategy_args.strategy_name).head_argument
    outer, _, part = path.partition(".")
    key, found = f"{name}.strategy_args.strategy_config.{outer}", role.strategy_args.strategy_config.get(outer)
    if part and found is not None:
        if not isinstance(found, Mapping):
            yield Problem(key, found, "is not a mapping", f"{outer}: {{name: value}}")
            return
        key, found = f"{key}.{part}", found.get(part)
    head_dtype = role.model_args.head_dtype
    if path and found is not None and (head_dtype is None or found != wanted):
        message = f"{name}.model_args.head_dtype decides, and is {head_dtype or 'null'}"
        yield Problem(key, found, message, f"remove it, and write {name}.model_args.head_dtype: fp32 or null")


def head_notes(config: PPOConfig, accelerators: bool) -> Iterator[Note]:
    """`accelerators`: `dtype: auto` is bf16 there."""
    narrow = {name: role for name, role in config.roles().items() if element_bytes(role, accelerators) < FP32}
    for name, role in config.roles().items():
        if role.model_args.head_dtype is not None and name not in narrow:
            yield Note(f"{name}.model_args.head_dtype", "fp32", "changes nothing: the layers compute in fp32")
    trained = narrow.get("actor_train")
    for name in COMPARED:
        other = narrow.get(name)
        if other and trained and other.model_args.head_dtype != trained.model_args.head_dtype:
            message = (
                f"actor_train's is {trained.model_args.head_dtype or 'null'}: on one side logits are rounded to bf16, and "
                "log-probs of the same weights differ by it; write the same in both"
            )
            yield Note(f"{name}.model_args.head_dtype", other.model_args.head_dtype, message)
