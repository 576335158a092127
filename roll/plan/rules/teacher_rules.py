"""Rules of teachers: what each is, which tags it teaches, what is learnt from it, and what can take its signal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields

from roll.core.configs.fields import default_of
from roll.core.configs.losses import POLICY_LOSSES
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import MISSING_VALUE, Problem, did_you_mean

_NAME = re.compile(r"[\w-]+")


def teacher_problems(config: PPOConfig) -> Iterator[Problem]:
    for rule in (_teachers, _tags, _objective, _signal):
        yield from rule(config)


def _teachers(config: PPOConfig) -> Iterator[Problem]:
    for name, teacher in config.teachers.items():
        key, weight = f"teachers.{name}", teacher.opd_kl_coef
        if not _NAME.fullmatch(name):
            yield Problem("teachers", name, "is no name of a teacher", "letters, digits, - and _")
        if config.model_folder(teacher) == config.model_folder(config.actor_train):
            value = teacher.model_args.model_name_or_path or MISSING_VALUE
            message = "the policy would be taught by the model that it starts from"
            yield Problem(f"{key}.model_args.model_name_or_path", value, message, "the folder of another model")
        if isinstance(weight, list) and len(weight) != 2:
            yield Problem(f"{key}.opd_kl_coef", weight, "is no schedule", "one number, or [1.0, 0.0] for [first, last]")
        elif not (any(weight) if isinstance(weight, list) else weight):
            yield Problem(f"{key}.opd_kl_coef", weight, "the teacher teaches nothing", "e.g. 1.0, or remove the teacher")


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
    roles = {"actor_train": config.actor_train, **{f"teachers.{name}": each for name, each in config.teachers.items()}}
    for name, role in roles.items():
        if (strategy := role.strategy_args.strategy_name).startswith("megatron"):
            message = f"knows the log-prob of a token, and kd_objective: {given.kd_objective} is of whole distributions"
            kind = strategy.removeprefix("megatron_")
            fix = f"fsdp2_{kind}, deepspeed_{kind}, or kd_objective: policy_gradient"
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
