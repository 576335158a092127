"""Readings of agentic files: estimators, sampling, games; and ROLL's own additions to such a file (`meant`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from roll.compat.roll.readings import Path, Reading, Reads, blocks, number
from roll.compat.roll.rule import DROP, value_at

SOKOBAN_STEP = -0.1
"""Reward of every move; ROLL's game has no key for it."""


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
    """Yields path and env_config of the environments of this type."""
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
    for name, usual in (("sokoban", 0.0), ("sokoban_native_env", SOKOBAN_STEP)):
        for path, config in _games(mapping, name):
            key = (*path, "env_config", "format_penalty")
            penalty = number(config.get("format_penalty", usual))
            if penalty is not None and "step_reward" not in config:
                yield key if "format_penalty" in config else (*path, "env_type"), {key: round(penalty + SOKOBAN_STEP, 12)}


def _slippery(mapping: Mapping[str, object]) -> Reads:
    for path, config in _games(mapping, "frozen_lake"):
        if config.get("is_slippery") is None:
            yield (*path, "env_type"), {(*path, "env_config", "is_slippery"): True}


def _second_group(mapping: Mapping[str, object]) -> Reads:
    for name in ("sokoban", "sokoban_native_env", "frozen_lake"):
        for path, config in _games(mapping, name):
            key = (*path, "env_config", "action_pattern")
            pattern = config.get("action_pattern")
            if isinstance(pattern, str) and (other := only_group(pattern, 2)) is not None:
                yield key, {key: other}


_ENV = "custom_envs.<name>.env_config"
AGENTIC: tuple[Reading, ...] = (
    Reading("adv_estimator", "grpo, agentic_reinforce", "ROLL's agentic estimators of these names compare nothing by "
            "themselves: they take the score of the whole episode as reward_normalization leaves it, discounted by gamma",
            _estimator, told=True),
    Reading("reward_normalization", "without grouping", "ROLL compares all episodes of the batch", _grouping),
    Reading("val_env_manager.generating_args", "beside actor_infer.generating_args", "ROLL overwrites it with actor_infer's; "
            "validation.generating_args is there for validation", _validation_sampling),
    Reading("actor_train.data_args.template", "another than native", "ROLL's episodes take the tokenizer's chat template",
            _dialogue),
    Reading("custom_envs.<name>.env_type", "sokoban", "ROLL's defaults, where the file leaves them out: dim_room [10, 10], "
            "num_boxes 4, max_steps 20", _sokoban_defaults),
    Reading(f"{_ENV}.format_penalty", "sokoban", "in ROLL a text without an action costs the step's 0.1, too", _sokoban_penalty),
    Reading("custom_envs.<name>.env_type", "frozen_lake without is_slippery", "ROLL's lake is slippery unless the file says no",
            _slippery),
    Reading(f"{_ENV}.action_pattern", "with several groups", "in ROLL the second group is the action, here the first",
            _second_group),
)  # fmt: skip


_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<opens>\((?:\?P<\w+>|(?!\?)))|.", re.DOTALL)
"""An escaped character, a set of characters, the beginning of a group that captures, or any other character."""


def only_group(pattern: str, number: int) -> str | None:
    """Returns the pattern with the group `number` (from 1) as the only one that captures. None if it has fewer groups or one
    only, refers to a group, or cannot be read: then it is left as it is."""
    try:
        groups = re.compile(pattern).groups
    except (re.error, RecursionError, OverflowError):
        return None
    if groups < max(number, 2) or re.search(r"\\[1-9]|\(\?P=|\(\?\(", pattern):
        return None
    numbers = count(1)
    rewritten = _PIECE.sub(lambda piece: "(?:" if piece["opens"] and next(numbers) != number else piece[0], pattern)
    return rewritten if re.compile(rewritten).groups == 1 else None


_DEFAULT_VALIDATION = {"num_env_groups": 128, "group_size": 1, "tags": ["SimpleSokoban"], "num_groups_partition": [128]}
_GAMES = ("frozen_lake", "sokoban")


@dataclass(frozen=True, slots=True)
class Meant:
    path: tuple[str, ...]
    value: Any
    """The written value; None if there is none."""
    target: object
    """The value to write instead; `DROP` for none."""
    note: str


def meant(mapping: Mapping[str, object], written: Mapping[str, object], agentic: bool) -> Iterator[Meant]:
    """`mapping`: after the rules of the tables. `written`: before them."""
    if agentic:
        yield from _validation(mapping, written)
        environments = mapping.get("custom_envs")
        for name, env in environments.items() if isinstance(environments, Mapping) else ():
            if isinstance(env, Mapping):
                yield from _templates(("custom_envs", name), env)


def _validation(mapping: Mapping[str, object], written: Mapping[str, object]) -> Iterator[Meant]:
    """ROLL has a val_env_manager by default, which plays its Sokoban."""
    steps, environments = written.get("eval_steps"), mapping.get("custom_envs")
    if mapping.get("val_env_manager") is not None or (type(steps) is int and steps <= 0):
        return
    if not mapping.get("actor_train") or not mapping.get("train_env_manager"):  # ROLL's pipelines that train
        return
    if isinstance(environments, Mapping) and "SimpleSokoban" in environments:
        yield Meant(("val_env_manager",), None, _DEFAULT_VALIDATION, "ROLL's default; eval_steps: 0 for no validation")
        return
    for key in ("val_batch_size", "validation"):
        if mapping.get(key) is not None:
            note = "no validation: ROLL's default val_env_manager plays SimpleSokoban, which custom_envs has not"
            yield Meant((key,), mapping[key], DROP, note)


def _templates(path: tuple[str, ...], env: Mapping[str, object]) -> Iterator[Meant]:
    """In a system template ROLL takes braces literally, and it adds an environment's rules by itself."""
    system, turn = env.get("agent_system_template") or "", env.get("agent_template", "{observation}")
    config = env.get("env_config")
    said = config.get("env_instruction") if isinstance(config, Mapping) and env.get("env_type") in _GAMES else None
    if not isinstance(system, str) or not isinstance(turn, str) or "AgentNative" in str(env.get("env_manager_cls")):
        return
    if isinstance(said, str):
        yield Meant(
            (*path, "env_config", "env_instruction"), said, DROP, "shown before the game's own rules, in agent_system_template"
        )
    if "{instructions}" not in system + turn:
        parts = [_literal(system), _literal(said) if isinstance(said, str) else "", "{instructions}"]
        shown = "\n".join(part for part in parts if part)
        yield Meant(
            (*path, "agent_system_template"), system, shown, "with {instructions}: ROLL shows an environment's rules by itself"
        )
    elif isinstance(said, str):
        block, text = ("agent_system_template", system) if "{instructions}" in system else ("agent_template", turn)
        shown = text.replace("{instructions}", f"{_literal(said)}\n{{instructions}}")
        yield Meant((*path, block), text, shown, "with env_instruction before the game's own rules")


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
