"""The rule for an engine's own arguments that a user may give, which all engines share."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from roll.core.configs.engines import engine_of
from roll.core.configs.problems import did_you_mean

LOAD_FORMATS = ("safetensors", "dummy")
EXACT_LOGPROBS = "every token's log-prob must be that of the sampled policy"


def declared(files: Iterable[Path], classes: Collection[str] | None = None) -> frozenset[str]:
    """The names of the fields that classes in these files declare; nothing is imported. `classes`: of these alone."""
    found = [node for file in files for node in ast.parse(file.read_text("utf-8")).body if isinstance(node, ast.ClassDef)]
    return frozenset(
        statement.target.id
        for node in found
        if classes is None or node.name in classes
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and not statement.target.id.startswith("_")
    )


def check_argument(
    name: str, value: object, known: Collection[str], keys: Collection[str], ours: Mapping[str, str], of: str
) -> None:
    """Raises `ValueError` with the reason if the user may not give this argument this value. `known`: the engine's arguments.
    `keys`: those read here, not by the engine. `ours`: those the project sets, with the reason. `of`: the engine, in words."""
    if name in keys:
        return
    if name in ours:
        raise ValueError(f"is not the user's to set: {ours[name]}")
    if name not in known:
        advice = did_you_mean(name, {*known, *keys} - ours.keys())
        raise ValueError(f"is not an argument of {of}" + (f"; {advice}" if advice else ""))
    if name == "load_format" and value not in LOAD_FORMATS:
        raise ValueError(f"must be one of {', '.join(LOAD_FORMATS)}: model files are safetensors")


def with_head(engine: str, given: Mapping[str, Any], head_dtype: str | None) -> dict[str, Any]:
    """Adds the engine's argument for `head_dtype`; beside it in a larger argument the user's parts stay."""
    (name, _, part), value = engine_of(engine).head_argument[0].partition("."), engine_of(engine).head_argument[1]
    if head_dtype is None:
        return dict(given)
    return {**given, name: {**(given.get(name) or {}), part: value} if part else value}
