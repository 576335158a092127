"""ROLL's keys of its distillation of texts: rows that a student is trained on, and a teacher whose distribution of each of their
tokens is a part of the loss. Here that is SFT with a teacher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll.compat.roll.keys_rows import column, trained
from roll.compat.roll.pipelines import STUDENT
from roll.compat.roll.rule import SPEED, KeyRule, Kind, Siblings, Translate, value_at

_TEACHER = "teachers.teacher"
_DEFAULTS: dict[str, Any] = {"question_key": "question", "answer_key": "answer", "kd_objective": "forward_kl"}
_DEFAULTS |= {"distill_loss_weight": 0.5}
"""ROLL's: distill_config.py."""
_EPOCHS = {"num_train_epochs": 1.0}
_OBJECTIVES = ("forward_kl", "reverse_kl", "js_divergence")


def is_distillation(file: Siblings) -> bool:
    return any(key in file for key in STUDENT)


def _given(name: str, file: Siblings) -> Any:
    return file.get(name, _DEFAULTS[name])


def _student(role: Any, file: Siblings) -> Mapping[str, object]:
    if isinstance(role, Mapping):
        role = {**role, "training_args": _EPOCHS | dict(role.get("training_args") or {})}
    read = trained(role, {**file, "response_key": _given("answer_key", file)})
    read = {**read, **column("prompt")(_given("question_key", file), file)}
    return read | {
        "distillation.kd_objective": _given("kd_objective", file),
        f"{_TEACHER}.opd_kl_coef": _given("distill_loss_weight", file),
    }


def _teacher(role: Any, file: Siblings) -> Mapping[str, object]:
    """The top level names the models of both roles, unless both name their own."""
    if not isinstance(role, Mapping):
        return {_TEACHER: role}
    model, named = dict(role.get("model_args") or {}), value_at(file, ("student", "model_args", "model_name_or_path"))
    if named is None or model.get("model_name_or_path") is None:
        model["model_name_or_path"] = file.get("teacher_pretrain")
    return {_TEACHER: {**role, "model_args": model, "opd_kl_coef": _given("distill_loss_weight", file)}}


def _rule(path: str, kind: Kind, note: str, to: Translate = lambda value, file: {}, *values: object) -> KeyRule:
    """`values`: those that it is about; none: all."""
    about = lambda value, file: is_distillation(file) and (not values or value in values)  # noqa: E731
    shown = ", ".join(["distillation", *map(str, values)])
    return KeyRule(path, kind, note, to, about, shown, absent=True, whole=True)


def _renamed(path: str, to: str, *values: object) -> KeyRule:
    return _rule(path, "alias", f"read as `{to}`", lambda value, file: {to: value}, *values)


def _only(path: str, value: object, otherwise: str) -> tuple[KeyRule, KeyRule]:
    nothing: Translate = lambda value, file: {}  # noqa: E731
    return _rule(path, "without effect", "it changes nothing as it stands", nothing, value), _rule(path, "lacking", otherwise)


_ONE = "both distributions, and the cross-entropy, are those of temperature 1: leave it out"
RULES = (
    _rule("student", "alias", "read as `actor_train`, its `num_train_epochs` as `total_epochs`", _student),
    _rule("teacher", "alias", f"read as `{_TEACHER}`", _teacher),
    _renamed("student_pretrain", "pretrain"),
    _renamed("teacher_pretrain", f"{_TEACHER}.model_args.model_name_or_path"),
    _rule("question_key", "alias", "read as `data_args.prompt` of actor_train and validation", column("prompt")),
    _renamed("answer_key", "sft.response"),
    _renamed("distill_loss_weight", f"{_TEACHER}.opd_kl_coef"),
    _renamed("kd_objective", "distillation.kd_objective", *_OBJECTIVES),
    _rule("kd_objective", "lacking", f"one of {', '.join(_OBJECTIVES)}"),
    _rule("logits_topk", "lacking", "the whole vocabulary is so many tokens as it has: write their number", lambda v, f: {}, 0),
    _renamed("logits_topk", "distillation.logits_topk"),
    *_only("kd_temperature", 1, _ONE),
    *_only("teacher_temperature", 1, _ONE),
    _rule("adaptive_kl_alpha", "without effect", "it belongs to adaptive_kl"),
    _rule("skew_lambda", "without effect", "it belongs to the skewed divergences"),
    _rule("distill_on_prompt", "alias", "read as `sft.loss_on`: all, or last",
          lambda value, file: {"sft.loss_on": "all" if value else "last"}),
    _rule("logits_transfer_backend", "without effect", f"how probabilities travel: {SPEED}"),
)  # fmt: skip
