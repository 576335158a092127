"""Rules that join several keys. Each problem names the key, the value, the rule with its arithmetic, and a fix."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from roll.core.configs.arguments import EngineArguments
from roll.core.configs.base import PRETRAIN
from roll.core.configs.derived import optimizer_batch_size
from roll.core.configs.fields import all_range_problems
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import MISSING_VALUE, Problem
from roll.core.configs.worker import TrainedConfig
from roll.plan.rules.agentic_rules import agentic_problems
from roll.plan.rules.best_rules import best_problems
from roll.plan.rules.head_rules import head_problems
from roll.plan.rules.image_rules import image_problems
from roll.plan.rules.loss_rules import loss_problems
from roll.plan.rules.metric_rules import alarm_problems
from roll.plan.rules.operating_rules import operating_problems
from roll.plan.rules.pair_rules import pair_problems
from roll.plan.rules.rlvr_rules import rlvr_problems
from roll.plan.rules.role_rules import device_problems, role_problems, unreadable_devices
from roll.plan.rules.rows_rules import rows_problems
from roll.plan.rules.schedule_rules import schedule_problems
from roll.plan.rules.teacher_rules import teacher_problems
from roll.plan.rules.warm_start_rules import warm_start_problems

OF_THE_RUN = frozenset({"messages", "add_generation_prompt"})
"""Variables of a chat template that are not for the user to set."""


def check_config(config: PPOConfig, device_count: int) -> list[Problem]:
    """Returns every problem that would occur later and can be known now. `device_count`: devices of the whole cluster."""
    problems = [*all_range_problems(config)]
    if unreadable := [*unreadable_devices(config)]:
        return problems + unreadable
    problems += device_problems(config, device_count)
    return problems + [problem for rule in RULES[config.kind] for problem in rule(config)]


def _template_variables(config: PPOConfig) -> Iterator[Problem]:
    data, key = config.actor_train.data_args, "actor_train.data_args.chat_template_kwargs"
    if data.chat_template_kwargs and data.template != "native":
        yield Problem(
            key,
            data.chat_template_kwargs,
            f"is never read: template is {data.template}",
            "actor_train.data_args.template: native",
        )
    for name in data.chat_template_kwargs:
        if not name.isidentifier() or name in OF_THE_RUN:
            message = "is given by the run" if name in OF_THE_RUN else "is no name of a variable"
            yield Problem(f"{key}.{name}", data.chat_template_kwargs[name], message, "remove it")


def _run(config: PPOConfig) -> Iterator[Problem]:
    if config.exp_name in ("", ".", "..") or "/" in config.exp_name:
        yield Problem(
            "exp_name",
            config.exp_name,
            "must be a plain folder name",
            f"{'-'.join(re.findall(r'[^/.]+', config.exp_name)) or 'my_run'}",
        )
    elif not config.exp_name.isprintable():
        yield Problem("exp_name", config.exp_name, "has line ends or control characters", "letters, digits, - and _")
    if config.resume_from_checkpoint == "":
        yield Problem("resume_from_checkpoint", "", "is empty", "write true, false, auto or a path")
    if isinstance(config.track_with, list) and "none" in config.track_with and len(config.track_with) > 1:
        yield Problem("track_with", config.track_with, "has none beside other trackers", "remove none")


def _deterministic(config: PPOConfig) -> Iterator[Problem]:
    """Yields problems of `deterministic`: whatever depends on timing, or on which requests share a batch."""
    ratio, engine = config.async_generation_ratio, config.actor_infer.strategy_args
    excluded = (
        (ratio > 0, f"needs async_generation_ratio 0, not {ratio:g}: timing decides otherwise", "async_generation_ratio: 0"),
        (config.redundant_groups > 0, "excludes redundant_groups: timing decides which groups are used", "redundant_groups: 0"),
        (config.is_one_of_several, f"timing decides otherwise with mode: {config.mode}", "mode: both"),
        (
            config.train_on_arrival and not config.only_explores,
            "train_on_arrival adds gradients up in the order in which groups come: timing decides",
            "train_on_arrival: false",
        ),
        (
            "actor_infer" in config.roles() and isinstance(engine.options, EngineArguments),
            f"{engine.strategy_name} batches requests as they come, and another batch rounds otherwise",
            "actor_infer.strategy_args.strategy_name: hf_infer",
        ),
    )
    for excludes, message, instead in excluded:
        if config.deterministic is True and excludes:
            yield Problem("deterministic", True, message, f"false, or {instead}")


def _lengths(config: PPOConfig) -> Iterator[Problem]:
    try:
        sequence_length = config.lengths().sequence
    except ValueError:  # reported by the pipeline's own rules, which know its keys
        return
    cache = config.actor_infer.strategy_args.strategy_config.get("kv_cache_tokens")
    if isinstance(cache, int) and cache < sequence_length:
        yield Problem(
            "actor_infer.strategy_args.strategy_config.kv_cache_tokens",
            cache,
            f"{cache} < sequence_length {sequence_length}: no request fits",
            f"at least {sequence_length}",
        )


def _group_key(config: PPOConfig) -> str:
    return config.group_size_key


def _sampling(config: PPOConfig) -> Iterator[Problem]:
    generating, key = config.actor_infer.generating_args, "actor_infer.generating_args"
    size, asked = config.group_size, generating.num_return_sequences
    if generating.temperature == 0:
        yield Problem(f"{key}.temperature", 0.0, "greedy responses of a group are all equal", "a temperature > 0, e.g. 1.0")
    if "" in generating.stop_strings:
        yield Problem(f"{key}.stop_strings", generating.stop_strings, "an empty text stops nothing", "remove it")
    if asked is not None and asked != size:
        yield Problem(
            f"{key}.num_return_sequences",
            asked,
            f"{asked} != {_group_key(config)} {size}",
            f"remove it, or {_group_key(config)}: {asked}",
        )
    for name, role in config.configured_roles().items():
        if isinstance(role, TrainedConfig) and role.training_args.warmup_ratio > 0 and role.training_args.warmup_steps > 0:
            ratio, steps = role.training_args.warmup_ratio, role.training_args.warmup_steps
            message = f"warmup_steps {steps} is given too"
            yield Problem(f"{name}.training_args.warmup_ratio", ratio, message, "keep one of them")


def _batch(config: PPOConfig) -> Iterator[Problem]:
    if "actor_train" not in config.configured_roles():
        return
    yield from _whole_batches(config, config.actor_train, "optimiser batch")
    if config.uses_critic and config.critic is not None:
        yield from _whole_batches(config, config.critic, "critic's optimiser batch")


def _whole_batches(config: PPOConfig, worker: TrainedConfig, name: str) -> Iterator[Problem]:
    batch = optimizer_batch_size(worker)
    training, ranks = worker.training_args, worker.data_parallel_size
    groups, size, samples = config.groups_per_step, config.group_size, config.rollouts_per_step
    units = ("groups", "episodes") if config.multi_turn else ("prompts", "responses")
    if batch > 0 and groups > 0 and samples % batch and config.samples_per_rollout == 1:
        message = (
            f"{groups} {units[0]} x {size} {units[1]} = {samples} samples, not a multiple of the {name}: "
            f"per_device_train_batch_size {training.per_device_train_batch_size} x gradient_accumulation_steps "
            f"{training.gradient_accumulation_steps} x {ranks} data-parallel ranks = {batch}"
        )
        yield Problem("rollout_batch_size", config.rollout_batch_size, message, _batch_fix(config, worker, batch))


def _batch_fix(config: PPOConfig, worker: TrainedConfig, batch: int) -> str:
    """Returns the nearest numbers of groups whose samples divide into whole optimiser batches, the policy's and the critic's, as
    rollout_batch_size counts them; and the largest smaller batches into which these samples divide."""
    role = "" if worker is config.actor_train else "critic.training_args."
    trained = [config.actor_train, *([config.critic] if config.uses_critic and config.critic is not None else [])]
    whole = math.lcm(batch, *(optimizer_batch_size(each) or 1 for each in trained))
    unit = whole // math.gcd(whole, config.group_size)
    counted = config.rollout_batch_size // config.groups_per_step
    below = config.groups_per_step // unit * unit
    fixes = [f"rollout_batch_size {f'{below * counted} or ' if below else ''}{(below + unit) * counted}"]
    for key in ("per_device_train_batch_size", "gradient_accumulation_steps"):
        given = getattr(worker.training_args, key)
        smaller = (size for size in range(given - 1, 0, -1) if config.rollouts_per_step % (batch // given * size) == 0)
        fixes += [f"{role}{key} {size}" for size in islice(smaller, 1)]
    return ", or ".join(fixes)


def _evaluation(config: PPOConfig) -> Iterator[Problem]:
    checkpoints = config.bench_checkpoints
    if not config.only_evaluates:
        if checkpoints != [PRETRAIN]:
            yield Problem(
                "bench_checkpoints", checkpoints, f"has no effect with mode: {config.mode}", "remove it, or mode: bench"
            )
        return
    if not config.validation_sampling:
        fix = "validation_sets: {<name>: ...}"
        yield Problem("validation_sets", MISSING_VALUE, "mode: bench evaluates validation sets, and there is none", fix)
    if not checkpoints:
        yield Problem("bench_checkpoints", [], "names no model", f"[{PRETRAIN}], or a list of folders of runs and checkpoints")
    if config.resume_from_checkpoint not in (False, "auto"):
        message = "an evaluation resumes nothing: its models are those of bench_checkpoints"
        yield Problem("resume_from_checkpoint", config.resume_from_checkpoint, message, "false")


_OF_ROWS = (
    *(_run, _deterministic, alarm_problems, best_problems),
    *(role_problems, head_problems, _template_variables, image_problems),
)
_GENERATING = (
    *(_run, _deterministic, _lengths, _batch, _evaluation, alarm_problems, best_problems, operating_problems, schedule_problems),
    *(loss_problems, teacher_problems, warm_start_problems, role_problems, head_problems),
    *(_sampling, _template_variables, image_problems),
)
RULES: dict[str, tuple[Callable[[Any], Iterable[Problem]], ...]] = {
    "rlvr": (*_GENERATING, rlvr_problems, pair_problems),
    "agentic": (*_GENERATING, agentic_problems),
    **dict.fromkeys(("sft", "dpo"), (*_OF_ROWS, teacher_problems, rows_problems)),
}
"""The rules of each kind of run, in the order in which their problems are told."""
