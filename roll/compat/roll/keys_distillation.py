"""ROLL's keys of its distillation of texts: rows that a student is trained on, and a teacher whose distribution of each of their
tokens is a part of the loss. Here that is SFT with a teacher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll.compat.roll.keys_rows import column, trained
from roll.compat.roll.pipelines import STUDENT
from roll.compat.roll.rule import SPEED, KeyRule, Siblings, ignored, lacking, of_files, off_or_lacking, renamed, value_at

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


_ONE = "both distributions, and the cross-entropy, are those of temperature 1: leave it out"
RULES = of_files("distillation", is_distillation,
    KeyRule("student", "alias", "read as `actor_train`, its `num_train_epochs` as `total_epochs`", _student),
    KeyRule("teacher", "alias", f"read as `{_TEACHER}`", _teacher),
    renamed("student_pretrain", "pretrain"),
    renamed("teacher_pretrain", f"{_TEACHER}.model_args.model_name_or_path"),
    KeyRule("question_key", "alias", "read as `data_args.prompt` of actor_train and validation", column("prompt")),
    renamed("answer_key", "sft.response"),
    renamed("distill_loss_weight", f"{_TEACHER}.opd_kl_coef"),
    KeyRule("kd_objective", "alias", "read as `distillation.kd_objective`", lambda v, f: {"distillation.kd_objective": v},
            lambda v, f: v in _OBJECTIVES, ", ".join(_OBJECTIVES)),
    lacking("kd_objective", f"one of {', '.join(_OBJECTIVES)}"),
    KeyRule("logits_topk", "lacking", "the whole vocabulary is so many tokens as it has: write their number",
            when=lambda v, f: v == 0, values="0"),
    renamed("logits_topk", "distillation.logits_topk"),
    *off_or_lacking("kd_temperature", (1,), _ONE),
    *off_or_lacking("teacher_temperature", (1,), _ONE),
    ignored("adaptive_kl_alpha", "it belongs to adaptive_kl"),
    ignored("skew_lambda", "it belongs to the skewed divergences"),
    KeyRule("distill_on_prompt", "alias", "read as `sft.loss_on`: all, or last",
            lambda v, f: {"sft.loss_on": "all" if v else "last"}),
    ignored("logits_transfer_backend", f"how probabilities travel: {SPEED}"),
)  # fmt: skip
