"""Roles of a run (parallel sizes, and shared devices), and the amounts in a pipeline step and in the whole run, from prompts to
optimiser steps, each with its arithmetic. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.backend_arguments import MegatronConfig
from roll.core.configs.derived import Derived
from roll.core.configs.engines import ENGINES
from roll.core.configs.ppo import MAIN_SET, PPOConfig
from roll.core.configs.worker import ScoringConfig, TrainingRole, WorkerConfig
from roll.core.data.microbatches import Forest

TENSOR = ("tensor_model_parallel_size", "tensor_parallel_size")
PIPELINE = ("pipeline_model_parallel_size", "pipeline_parallel_size")
CONTEXT = ("context_model_parallel_size", "context_parallel_size")


@dataclass(frozen=True, slots=True)
class Quantity:
    name: str
    step: int | None
    """Count in one pipeline step; None where such a count says nothing."""
    run: int
    """Count in all `max_steps` pipeline steps."""
    arithmetic: str
    """Arithmetic of `step`, or of `run` where `step` is None."""
    at_most: bool = False
    """An upper bound: every sample at its full length."""


def quantities(config: PPOConfig, derived: Derived, data_parallel: int) -> list[Quantity]:
    if config.only_evaluates:
        return [Quantity(f"rollouts of {name}", None, count, how) for name, (count, how) in _validation_rollouts(config).items()]
    return [
        Quantity("pipeline steps", None, config.max_steps, "max_steps"),
        *_rollouts(config, derived),
        *(_optimisation(config, derived, data_parallel) if config.trains else ()),
        *_versions(config),
    ]


def _rollouts(config: PPOConfig, derived: Derived) -> Iterator[Quantity]:
    steps, groups, size = config.max_steps - config.warm_steps, config.groups_per_step, config.group_size
    rollouts, samples = config.rollouts_per_step, config.rollouts_per_step * config.samples_per_rollout
    if isinstance(config, AgenticConfig):
        turns = max(config.custom_envs[tag].max_steps for tag in config.partition(config.train_env_manager))
        batch = config.rollout_batch_size
        yield Quantity("env groups", groups, groups * steps, f"rollout_batch_size {batch:,} / group_size {size}")
        yield Quantity("episodes", rollouts, rollouts * steps, f"{groups:,} groups × {size} episodes of the same seed")
        total = rollouts * turns
        yield Quantity("turns", total, total * steps, f"{rollouts:,} episodes × max_steps {turns}", at_most=True)
        if samples > rollouts:
            yield Quantity("samples", samples, samples * steps, "one per turn (env_manager_cls)", at_most=True)
    else:
        yield Quantity("prompts", groups, groups * steps, "rollout_batch_size")
        arithmetic = f"{groups:,} prompts × num_return_sequences_in_group {size}"
        yield Quantity("samples", samples, samples * steps, arithmetic)
        if config.uses_greedy_baseline:
            yield Quantity("greedy responses", groups, groups * steps, "one per prompt, not trained (adv_estimator remax)")
    tokens = samples * derived.sequence_length
    arithmetic = f"{samples:,} × sequence_length {derived.sequence_length:,}"
    yield Quantity("tokens", tokens, tokens * steps, arithmetic, at_most=True)


def _optimisation(config: PPOConfig, derived: Derived, data_parallel: int) -> Iterator[Quantity]:
    train, training = config.actor_train, config.actor_train.training_args
    per_epoch = derived.optimizer_steps_per_epoch
    optimiser_steps = per_epoch * config.ppo_epochs
    each, accumulated = training.per_device_train_batch_size, training.gradient_accumulation_steps
    batch = each * accumulated * data_parallel
    arithmetic = f"{derived.samples_per_step:,} / ({each} × {accumulated} × {data_parallel} data-parallel = {batch:,})"
    arithmetic = f"⌈{arithmetic}⌉" if derived.samples_per_step % batch else arithmetic
    if config.ppo_epochs > 1:
        arithmetic += f" × ppo_epochs {config.ppo_epochs}"
    if warm := config.warm_steps:
        rows = f"{config.groups_per_step:,} rows each, in the first {warm:,} steps"
        yield Quantity("warm start's optimiser steps", 1, warm, rows)
    training_steps = config.max_steps - config.critic_warmup - warm
    yield Quantity("optimiser steps", optimiser_steps, optimiser_steps * training_steps, arithmetic)
    if (size := prompt_sharing(config, train, per_epoch)) > 1:
        yield _computed_tokens(config, derived, size, training_steps)
    samples = config.samples_per_rollout
    parts = config.groups_per_step if config.train_on_arrival else 1
    share = -(-samples * derived.optimizer_batch_size // parts // data_parallel)
    micro, shown = _micro_batches(share, size, train.max_tokens_per_microbatch_in_train, derived, parts)
    total = micro * optimiser_steps
    shown = f"{optimiser_steps:,} optimiser step{'s' * (optimiser_steps > 1)} × {shown}"
    yield Quantity("micro-batches a rank trains", total, total * training_steps, shown, at_most=True)
    if derived.critic_steps_per_epoch:
        critic_steps = derived.critic_steps_per_epoch * config.ppo_epochs
        arithmetic = f"{derived.samples_per_step:,} / {derived.samples_per_step // derived.critic_steps_per_epoch:,} samples"
        if config.ppo_epochs > 1:
            arithmetic += f" × ppo_epochs {config.ppo_epochs}"
        yield Quantity("critic's optimiser steps", critic_steps, derived.critic_total_steps, arithmetic)
    if derived.recompute_old_logprobs:
        share = -(-samples * derived.samples_per_step // parts // data_parallel)
        group = prompt_sharing(config, train)
        total, shown = _micro_batches(share, group, train.max_tokens_per_microbatch_in_infer, derived, parts)
        yield Quantity("micro-batches a rank recomputes", total, total * config.max_steps, shown, at_most=True)


def _computed_tokens(config: PPOConfig, derived: Derived, size: int, steps: int) -> Quantity:
    """Tokens that a training step computes when each prompt is computed once."""
    response = derived.response_length
    prompt = derived.sequence_length - response
    each, apart = prompt + size * response, size * (prompt + response)
    total = config.groups_per_step * each * config.ppo_epochs
    saved = f"{1 - each / apart:.0%} fewer than a row for each sample"
    arithmetic = f"{config.groups_per_step:,} prompts × ({prompt:,} + {size:,} × {response:,}): {saved}"
    return Quantity("tokens that training computes", total, total * steps, arithmetic, at_most=True)


def prompt_sharing(config: PPOConfig, worker: TrainingRole | ScoringConfig, optimiser_steps: int = 1) -> int:
    """Returns the number of samples of one prompt, which is computed once; 1 where nothing can be promised: turns grow out of
    each other, several optimiser steps draw from all groups, and some models are computed a row for each sample."""
    packed = worker.model_args.attn_implementation == "sdpa" and not isinstance(worker.strategy_args.options, MegatronConfig)
    return config.group_size if packed and optimiser_steps == 1 and not config.multi_turn else 1


def _micro_batches(samples: int, group: int, budget: int, derived: Derived, parts: int) -> tuple[int, str]:
    """Returns the number of micro-batches of a rank's samples at full length, and its arithmetic; shorter samples need no more.
    `group`: see `prompt_sharing`. `parts`: groups that come one by one (`train_on_arrival`), each with so many samples."""
    longest, response = derived.sequence_length, derived.response_length
    plan = Forest.of_groups(samples, group, longest - response, response).microbatches(budget)
    each, prompts = len(plan[0]), math.ceil(len(plan[0]) / group)
    tokens = f"{prompts:,} × {longest - response:,} + {each:,} × {response:,}" if group > 1 else f"{each:,} × {longest:,}"
    of_parts = f"{parts:,} groups × " if parts > 1 else ""
    return parts * len(plan), f"{of_parts}⌈{samples:,} samples / {each:,}⌉ ({tokens} of {budget:,} tokens per micro-batch)"


def _versions(config: PPOConfig) -> Iterator[Quantity]:
    steps, push = config.max_steps, config.weight_push_interval
    if push > 1:
        arithmetic = f"one every {push:,} (weight_push_interval) and at the last, to every engine"
        yield Quantity("weight updates", None, math.ceil(steps / push), arithmetic)
    else:
        yield Quantity("weight updates", 1, steps, "one per pipeline step, to every engine")
    if config.validation_sampling:
        between = config.steps_between_validations
        count, every = validations(steps, between), f"at step 0, every {between:,} (eval_steps) and at the last"
        yield Quantity("validations", None, count, every)
        for name, (rollouts, how) in _validation_rollouts(config).items():
            of_set = "" if name == MAIN_SET else f" of {name}"
            yield Quantity(f"validation rollouts{of_set}", None, count * rollouts, f"{count:,} × {how}")
    if config.trains:
        saved = validations(steps, config.save_steps or steps) - 1
        every = f"every {config.save_steps:,} (save_steps) and " if config.save_steps else "save_steps 0: "
        yield Quantity("checkpoints", None, saved, f"{every}at the last")


def validations(max_steps: int, every: int) -> int:
    """Returns the number of validated versions: 0, `every`, 2·`every`, ... and `max_steps`."""
    return 1 + math.ceil(max_steps / every)


def _validation_rollouts(config: PPOConfig) -> dict[str, tuple[int, str]]:
    """Returns the rollouts of each validation set in one validation, and their arithmetic; not of sets whose prompt file
    decides."""
    if isinstance(config, AgenticConfig):
        counts = {name: config.episodes_of(validation.env_manager) for name, validation in config.validations.items()}
        return {name: (count, f"{count:,} episodes") for name, count in counts.items()}
    prompts = config.val_batch_size
    if prompts is None:
        return {}
    each = config.validation_attempts
    return {name: (prompts * n, f"(val_batch_size {prompts:,} × {n})") for name, n in each.items()}


@dataclass(frozen=True, slots=True)
class RolePlan:
    role: str
    strategy: str
    devices: tuple[int, ...]
    tensor: int
    pipeline: int
    context: int
    data: int
    """Data-parallel ranks of a trainer, independent engines of `actor_infer`."""
    arithmetic: str
    shares_with: tuple[str, ...]
    """Roles with which it takes turns, as they need some of the same devices."""
    overlaps: tuple[str, ...] = ()
    """Roles that work at the same time on some of its devices."""


def role_plans(config: PPOConfig) -> list[RolePlan]:
    """Returns the roles that a run starts. `device_mapping` must be readable and the sizes must divide (`check_config`)."""
    roles = config.roles()
    plans = []
    for name, role in roles.items():
        tensor, pipeline, context = (_size(role, names) for names in (TENSOR, PIPELINE, CONTEXT))
        context *= role.model_args.ulysses_size
        data = max(1, role.world_size // (tensor * pipeline * context))
        plans.append(
            RolePlan(
                role=name,
                strategy=role.strategy_args.strategy_name,
                devices=role.devices,
                tensor=tensor,
                pipeline=pipeline,
                context=context,
                data=data,
                arithmetic=_arithmetic(role.strategy_args.strategy_name, role.world_size, tensor, pipeline, context, data),
                shares_with=config.on_devices_of(name, at_once=False),
                overlaps=config.on_devices_of(name, at_once=True),
            )
        )
    return plans


def _size(role: WorkerConfig, names: tuple[str, ...]) -> int:
    """Returns the size under the first of these names that the back end's options have; 1 where they have none."""
    given: dict[str, Any] = role.strategy_args.strategy_config
    for name in names:
        value = given.get(name, getattr(role.strategy_args.options, name, None))
        if isinstance(value, int):
            return value
    return 1


def _arithmetic(strategy: str, devices: int, tensor: int, pipeline: int, context: int, data: int) -> str:
    kind = "data-parallel" if strategy not in ENGINES else "engine" if data == 1 else "engines"
    factors = [(tensor, "tensor"), (pipeline, "pipeline"), (context, "context"), (data, kind)]
    shown = [f"{size} {name}" for size, name in factors if size > 1 or name == kind]
    return f"{devices} device{'s' if devices > 1 else ''} = {' × '.join(shown)}"
