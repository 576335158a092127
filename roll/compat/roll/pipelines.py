"""Choice of a configuration's pipeline: the started one, unless the keys say otherwise; ROLL's pipelines that are not here are
refused by name. And the top-level keys that `${...}` names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

from roll.core.configs.agentic import AgenticConfig, EnvConfig
from roll.core.configs.fields import hints
from roll.core.configs.problems import ConfigError, Problem
from roll.core.configs.rlvr import RLVRConfig
from roll.plan.rows_config import DPOConfig, SFTConfig

Pipeline = Literal["rlvr", "agentic", "sft", "dpo"]
AnyConfig: TypeAlias = RLVRConfig | AgenticConfig | SFTConfig | DPOConfig
CONFIGS: dict[Pipeline, type[AnyConfig]] = {"rlvr": RLVRConfig, "agentic": AgenticConfig, "sft": SFTConfig, "dpo": DPOConfig}
STUDENT = ("student", "student_pretrain")
"""The keys that make a file one of ROLL's distillation of texts: SFT with a teacher."""
ROWS_KEYS: dict[str, Pipeline] = {
    **{"sft": "sft", "dpo": "dpo", "sft_train": "sft", "chosen_key": "dpo", "rejected_key": "dpo"},
    **dict.fromkeys(STUDENT, "sft"),
}
"""The keys that make a file one of SFT or DPO; all but the first two are ROLL's."""

AGENTIC_KEYS = ("custom_envs", "train_env_manager", "val_env_manager", "reward_normalization", "env_monitor", "batch_adjust_mode")

_OTHERS = {"self-distillation": ("opsd_mode",)}
_DIFFUSION = ("diffusion_module", "diffusion_deepspeed_train")
_HEARS = re.compile(r"(^|[-_/.0-9])omni([-_/.]|$)", re.IGNORECASE)
_HEARING = ("pretrain", "model_name_or_path", "template")
_SENSES, _DIFFUSION_NAME, _COMPUTER_NAME = "models that hear", "diffusion models", "computer use"
_COMPUTER = re.compile(r"computer|osworld|android|browser", re.IGNORECASE)

OTHER_PIPELINE = "belongs to a pipeline that is not supported"
REFUSED = {name: ", ".join(f"`{key}`" for key in keys) for name, keys in _OTHERS.items()} | {
    _DIFFUSION_NAME: ", ".join(f"`{value}`" for value in _DIFFUSION),
    _SENSES: "a model or template named Omni",
    _COMPUTER_NAME: "the name of an `env_type`",
}
"""Pipelines of ROLL that are not here, and the keys that identify them."""


def pipeline_of(mapping: Mapping[str, object], started: Pipeline | None = None) -> Pipeline:
    """Returns the pipeline of a file. `started`: named by the user; it decides where no key does. Raises `ConfigError` with one
    problem for a pipeline that is not here."""
    for problem in _refused(mapping):
        raise ConfigError([problem])
    if rows := next((kind for key, kind in ROWS_KEYS.items() if key in mapping), None):
        return rows
    agentic = next((key for key in AGENTIC_KEYS if mapping.get(key)), None)
    if agentic and mapping.get("rewards"):
        message = f"is for RLVR, and {agentic} for the agentic pipeline: they exclude each other"
        raise ConfigError([Problem("rewards", mapping["rewards"], message, "remove one: environments give their own rewards")])
    if agentic or any(key in mapping for key in AGENTIC_KEYS):
        return "agentic"
    if mapping.get("rewards") or (_has_prompts(mapping) and started not in ("sft", "dpo")):
        return "rlvr"
    return started or _by_lengths(mapping)


def _by_lengths(mapping: Mapping[str, object]) -> Pipeline:
    """Guesses from lengths where neither prompts nor environments are written: an episode has one length, a prompt and its
    response have two."""
    rlvr, agentic = hints(RLVRConfig).keys(), hints(AgenticConfig).keys()
    if mapping.keys() & (rlvr - agentic):
        return "rlvr"
    return "agentic" if mapping.keys() & (agentic - rlvr) or mapping.get("sequence_length") else "rlvr"


def of_others(name: str, cls: object) -> str:
    """Returns the runs of another kind to which a key belongs that this kind lacks; else empty."""
    if cls is AgenticConfig:
        return "it belongs to RLVR runs" if name in hints(RLVRConfig) else ""
    if name in hints(EnvConfig):
        return f"it belongs to agentic runs: custom_envs.<tag>.{name}"
    return "it belongs to agentic runs" if name in hints(AgenticConfig) else ""


def _has_prompts(mapping: Mapping[str, object]) -> bool:
    actor = mapping.get("actor_train")
    data = actor.get("data_args") if isinstance(actor, Mapping) else None
    return isinstance(data, Mapping) and any(data.get(name) for name in ("file_name", "path"))


def _refused(mapping: Mapping[str, object]) -> Iterator[Problem]:
    for name, keys in _OTHERS.items():
        for key in keys:
            if mapping.get(key):
                fix = "teachers: {self: {live: true, hint_key: COLUMN}} lets the policy teach itself from a hint"
                yield Problem(key, mapping[key], f"{OTHER_PIPELINE}: {name}", fix)
    for key, value in _leaves(mapping, ""):
        name = key.rpartition(".")[2]
        if value in _DIFFUSION:
            yield _problem(key, value, _DIFFUSION_NAME)
        if name in _HEARING and isinstance(value, str) and _HEARS.search(value):
            yield _problem(key, value, _SENSES)
        if name == "env_type" and isinstance(value, str) and _COMPUTER.search(value):
            yield _problem(key, value, _COMPUTER_NAME)


def _problem(key: str, value: object, pipeline: str) -> Problem:
    return Problem(key, value, f"{OTHER_PIPELINE}: {pipeline}", "RLVR, agentic, SFT, DPO and distillation pipelines are")


def _leaves(mapping: Mapping[str, object], above: str) -> Iterator[tuple[str, object]]:
    for name, value in mapping.items():
        key = f"{above}.{name}" if above else str(name)
        if isinstance(value, Mapping):
            yield from _leaves(value, key)
        yield key, value


# `${a}`, `${a.b[0]}`; not the call of a resolver, `${oc.env:NAME}`, whose arguments may hold such a reference.
_REFERENCE = re.compile(r"\$\{\s*([\w-]+)(?:[.\[][^{}:]*)?\s*\}")


def references_in(value: object) -> set[str]:
    """Returns the top-level keys that `${...}` names anywhere in an unresolved configuration."""
    if isinstance(value, Mapping):
        return set[str]().union(*map(references_in, value.values()))
    if isinstance(value, list):
        return set[str]().union(*map(references_in, value))
    return set(_REFERENCE.findall(value)) if isinstance(value, str) else set()
