"""Readings of agentic files: estimators, sampling, games."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from roll.compat.roll.action_pattern import only_group
from roll.compat.roll.reading import Path, Reading, Reads, blocks, number
from roll.compat.roll.rule import DROP
from roll.compat.roll.translation import value_at

SOKOBAN_STEP = -0.1
"""What every move costs; ROLL's game has no key for it."""


def _estimator(mapping: Mapping[str, object]) -> Reads:
    if mapping.get("adv_estimator") in ("grpo", "agentic_reinforce"):
        yield ("adv_estimator",), {("adv_estimator",): "reinforce"}


def _grouping(mapping: Mapping[str, object]) -> Reads:
    written = mapping.get("reward_normalization")
    if isinstance(written, Mapping) and written and mapping.get("adv_estimator") != "gigpo":
        yield ("reward_normalization",), {("reward_normalization", "grouping"): "batch"}


def _validation_sampling(mapping: Mapping[str, object]) -> Reads:
    path = ("val_env_manager", "generating_args")
    if value_at(mapping, path) is not None and value_at(mapping, ("actor_infer", "generating_args")) is not None:
        yield path, {path: DROP}


def _games(mapping: Mapping[str, object], name: str) -> Iterator[tuple[Path, Mapping[str, object]]]:
    """Path and env_config of the environments of this type."""
    for path, block in blocks(mapping, "custom_envs"):
        config = block.get("env_config") or {}
        if block.get("env_type") == name and isinstance(config, Mapping):
            yield path, config


def _dialogue(mapping: Mapping[str, object]) -> Reads:
    path = ("actor_train", "data_args", "template")
    if value_at(mapping, path) not in (None, "native"):
        yield path, {path: DROP}


def _sokoban_defaults(mapping: Mapping[str, object]) -> Reads:
    for path, config in _games(mapping, "sokoban"):
        theirs = {"dim_room": [10, 10], "num_boxes": 4, "max_steps": 20}
        left_out = {(*path, "env_config", key): value for key, value in theirs.items() if config.get(key) is None}
        if left_out:
            yield (*path, "env_type"), left_out


def _sokoban_penalty(mapping: Mapping[str, object]) -> Reads:
    for path, config in _games(mapping, "sokoban"):
        key = (*path, "env_config", "format_penalty")
        penalty = number(config.get("format_penalty", 0.0))
        if penalty is not None and "step_reward" not in config:
            yield key if "format_penalty" in config else (*path, "env_type"), {key: round(penalty + SOKOBAN_STEP, 12)}


def _slippery(mapping: Mapping[str, object]) -> Reads:
    for path, config in _games(mapping, "frozen_lake"):
        if config.get("is_slippery") is None:
            yield (*path, "env_type"), {(*path, "env_config", "is_slippery"): True}


def _second_group(mapping: Mapping[str, object]) -> Reads:
    for name in ("sokoban", "frozen_lake"):
        for path, config in _games(mapping, name):
            key = (*path, "env_config", "action_pattern")
            pattern = config.get("action_pattern")
            if isinstance(pattern, str) and (other := only_group(pattern, 2)) is not None:
                yield key, {key: other}


_ENV = "custom_envs.<name>.env_config"
AGENTIC: tuple[Reading, ...] = (
    Reading(
        "adv_estimator",
        "grpo, agentic_reinforce",
        "ROLL's agentic estimators of these names compare nothing by themselves: they take the score of the whole "
        "episode as reward_normalization leaves it, discounted by gamma",
        _estimator,
        ("agentic",),
        told=True,
    ),
    Reading(
        "reward_normalization",
        "without grouping",
        "ROLL compares all episodes of the batch",
        _grouping,
        ("agentic",),
    ),
    Reading(
        "val_env_manager.generating_args",
        "beside actor_infer.generating_args",
        "ROLL overwrites it with actor_infer's; validation.generating_args is there for validation",
        _validation_sampling,
        ("agentic",),
    ),
    Reading(
        "actor_train.data_args.template",
        "another than native",
        "ROLL's episodes take the tokenizer's chat template",
        _dialogue,
        ("agentic",),
    ),
    Reading(
        "custom_envs.<name>.env_type",
        "sokoban",
        "ROLL's defaults, where the file leaves them out: dim_room [10, 10], num_boxes 4, max_steps 20",
        _sokoban_defaults,
        ("agentic",),
    ),
    Reading(
        f"{_ENV}.format_penalty",
        "sokoban",
        "in ROLL a text without an action costs the step's 0.1, too",
        _sokoban_penalty,
        ("agentic",),
    ),
    Reading(
        "custom_envs.<name>.env_type",
        "frozen_lake without is_slippery",
        "ROLL's lake is slippery unless the file says no",
        _slippery,
        ("agentic",),
    ),
    Reading(
        f"{_ENV}.action_pattern",
        "with several groups",
        "in ROLL the second group is the action, here the first",
        _second_group,
        ("agentic",),
    ),
)
