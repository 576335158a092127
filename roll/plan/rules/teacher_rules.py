"""Rules of teachers: their kinds, their tags, their signals, and the losses that can take these."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import Field, fields

from roll.core.configs.derived import keeps_sampling_mask
from roll.core.configs.engines import engine_of, engines_that
from roll.core.configs.fields import default_of
from roll.core.configs.losses import POLICY_LOSSES
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import MISSING_VALUE, Problem, did_you_mean
from roll.core.configs.worker import TeacherConfig

_NAME = re.compile(r"[\w-]+")


def teacher_problems(config: PPOConfig) -> Iterator[Problem]:
    for rule in (_teachers, _hints, _elsewhere, _engines, _tags, _objective, _signal):
        yield from rule(config)


def _teachers(config: PPOConfig) -> Iterator[Problem]:
    for name, teacher in config.teachers.items():
        key, weight = f"teachers.{name}", teacher.opd_kl_coef
        if not _NAME.fullmatch(name):
            yield Problem("teachers", name, "is no name of a teacher", "letters, digits, - and _")
        itself = config.model_folder(teacher) == config.model_folder(config.actor_train)
        if itself and teacher.hint_key is None and not (teacher.live or teacher.endpoint or config.from_rows):
            value = teacher.model_args.model_name_or_path or MISSING_VALUE
            message = "the policy would be taught by the model that it starts from"
            yield Problem(f"{key}.model_args.model_name_or_path", value, message, "the folder of another model")
        if isinstance(weight, list) and len(weight) != 2:
            yield Problem(f"{key}.opd_kl_coef", weight, "is no schedule", "one number, or [1.0, 0.0] for [first, last]")
        elif not (any(weight) if isinstance(weight, list) else weight):
            yield Problem(f"{key}.opd_kl_coef", weight, "the teacher teaches nothing", "e.g. 1.0, or remove the teacher")


def _hints(config: PPOConfig) -> Iterator[Problem]:
    for name, teacher in config.teachers.items():
        key = f"teachers.{name}"
        if teacher.hint_key is None:
            if teacher.live:
                yield Problem(f"{key}.live", True, "the policy would be taught by itself", "hint_key: a column with a hint")
            if teacher.hint_template != default_of(_field("hint_template")):
                yield Problem(f"{key}.hint_template", teacher.hint_template, "is not read without hint_key", "remove it")
            continue
        if config.kind != "rlvr":
            message = "an agent's first observation comes from its environment, and has no row with a hint"
            message = "rows are scored as they stand" if config.from_rows else message
            yield Problem(f"{key}.hint_key", teacher.hint_key, message, "remove it")
        if missing := [place for place in ("{prompt}", "{hint}") if place not in teacher.hint_template]:
            fix = "e.g. '{prompt}\\n\\n{hint}'"
            yield Problem(f"{key}.hint_template", teacher.hint_template, f"has no {' and no '.join(missing)}", fix)


def _elsewhere(config: PPOConfig) -> Iterator[Problem]:
    sampling = config.actor_infer.generating_args
    for name, teacher in config.teachers.items():
        key, url = f"teachers.{name}", teacher.endpoint
        who = "live" if teacher.live else "endpoint" if url is not None else None
        for name_of in ("model_args", "strategy_args", "device_mapping", "worker_cls", "max_tokens_per_microbatch_in_infer"):
            if who is not None and getattr(teacher, name_of) != default_of(_field(name_of)):
                yield Problem(
                    f"{key}.{name_of}", "given", f"is not read with {who}, where the teacher has no devices", "remove it"
                )
        if url is None:
            continue
        if teacher.live:
            yield Problem(f"{key}.endpoint", url, "the policy is the teacher (live: true)", "one of the two")
        if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", url):
            yield Problem(f"{key}.endpoint", url, "is no address of a server", "http://host:port/v1")
        if sampling.temperature != 1:
            yield Problem(f"{key}.endpoint", url, _at_1(config), f"{_AT_1}, or a model on devices")
        if keeps_sampling_mask(config):
            yield Problem(f"{key}.endpoint", url, _WHOLE, f"{_UNCUT}, or a model on devices")


_WHOLE = "its log-probs are of the whole vocabulary, and the policy's of the sets that top_p and top_k kept"
_UNCUT = "top_p: 1 and top_k: 0, keep_sampling_mask: false"
_AT_1 = "actor_infer.generating_args.temperature: 1"


def _at_1(config: PPOConfig) -> str:
    return f"its log-probs are of temperature 1, and the policy samples at {config.actor_infer.generating_args.temperature:g}"


def engine_teachers(config: PPOConfig) -> dict[str, TeacherConfig]:
    """Returns the teachers that engines of this process serve, by role."""
    roles, able = config.roles().items(), engines_that("teacher")
    return {name: role for name, role in roles if isinstance(role, TeacherConfig) and role.strategy_args.strategy_name in able}


def _engines(config: PPOConfig) -> Iterator[Problem]:
    for name, teacher in engine_teachers(config).items():
        strategy, others = teacher.strategy_args.strategy_name, config.on_devices_of(name, at_once=False)
        key = f"{name}.strategy_args.strategy_name"
        if keeps_sampling_mask(config):
            yield Problem(key, strategy, _WHOLE, f"{_UNCUT}, or fsdp2_infer")
        if engine_of(strategy).teaches_at_1 and config.actor_infer.generating_args.temperature != 1:
            yield Problem(key, strategy, _at_1(config), f"{_AT_1}, or vllm or fsdp2_infer")
        if others:
            message = f"{' and '.join(others)} would take turns with it, and it keeps its memory"
            yield Problem(f"{name}.device_mapping", teacher.device_mapping, message, "devices of its own, or fsdp2_infer")


def _field(name: str) -> Field[object]:
    return next(item for item in fields(TeacherConfig) if item.name == name)


def _tags(config: PPOConfig) -> Iterator[Problem]:
    known, owner = config.tag_to_domain, dict[str, str]()
    for name, teacher in config.teachers.items():
        key = f"teachers.{name}.tag_included"
        for tag in teacher.tag_included:
            if tag not in known:
                fix = did_you_mean(tag, known, f"one of {', '.join(known)}")
                yield Problem(key, tag, "no prompt has this tag", fix)
            elif tag in owner:
                yield Problem(key, tag, f"the tag belongs to teachers.{owner[tag]} already", "name it once")
            owner.setdefault(tag, name)
        others = [other for other, each in config.teachers.items() if not each.tag_included and other != name]
        if not teacher.tag_included and others:
            message = f"teachers.{others[0]} names none, either: one teacher has all tags that no other names"
            yield Problem(key, MISSING_VALUE, message, "the tags of each")
    if config.estimator.of_teachers and config.teachers:
        for tag in known:
            if config.teacher_of(tag) is None:
                message = f"no teacher teaches the tag {tag}, and rewards are not learnt from"
                yield Problem("adv_estimator", config.adv_estimator, message, f"a teacher with tag_included: [{tag}]")


def _objective(config: PPOConfig) -> Iterator[Problem]:
    given, key = config.distillation, "distillation"
    changed = {item.name: value for item in fields(given) if (value := getattr(given, item.name)) != default_of(item)}
    reads = {"policy_gradient": {"kd_objective"}, "js_divergence": {"kd_objective", "kd_beta", "logits_topk"}}
    for name, value in changed.items():
        if not config.teachers:
            yield Problem(f"{key}.{name}", value, "there are no teachers", "teachers, or remove it")
        elif name not in reads.get(given.kd_objective, {"kd_objective", "logits_topk"}):
            yield Problem(f"{key}.{name}", value, f"is not read with kd_objective: {given.kd_objective}", "remove it")
    if not config.teachers or given.beta is None:
        return
    teachers = {f"teachers.{name}": each for name, each in config.teachers.items() if not (each.live or each.endpoint)}
    roles = {"actor_train": config.actor_train, **teachers}
    for name, role in roles.items():
        if (strategy := role.strategy_args.strategy_name).startswith("megatron"):
            message = f"knows the log-prob of a token, and kd_objective: {given.kd_objective} is of whole distributions"
            kind = strategy.removeprefix("megatron_")
            fix = f"fsdp2_{kind}{' or' if config.from_rows else ','} deepspeed_{kind}"
            fix += "" if config.from_rows else ", or kd_objective: policy_gradient"
            yield Problem(f"{name}.strategy_args.strategy_name", strategy, message, fix)


def _signal(config: PPOConfig) -> Iterator[Problem]:
    if not config.teachers:
        if config.estimator.of_teachers:
            fix = "teachers: {big: {model_args: {model_name_or_path: ...}, device_mapping: ...}}, or adv_estimator: grpo"
            yield Problem("adv_estimator", config.adv_estimator, "there are no teachers", fix)
        return
    loss = POLICY_LOSSES.get(config.actor_train.pg_variant)
    if loss is not None and not loss.by_token and config.distillation.beta is None:
        message = "spreads advantages over a response or goes by its reward, and a teacher says what each token is worth"
        able = [name for name, each in POLICY_LOSSES.items() if each.by_token]
        fix = f"one of {', '.join(able)}, or a divergence (distillation.kd_objective)"
        yield Problem("actor_train.pg_variant", config.actor_train.pg_variant, message, fix)
