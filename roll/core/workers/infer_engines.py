"""Makes an inference engine by its `strategy_name`; an engine's packages are imported only when it is used."""

from __future__ import annotations

from typing import Any

from roll.core.configs.dotted_path import named_object
from roll.core.configs.engines import ENGINES
from roll.core.workers.infer_interface import InferStrategy


def make_infer_strategy(name: str, options: dict[str, Any]) -> InferStrategy:
    """Makes the engine. `options`: arguments of the strategy's class, whose errors are raised unchanged."""
    if name not in ENGINES:
        raise ValueError(f"unknown inference strategy '{name}'; known: {', '.join(ENGINES)}")
    engine, path = ENGINES[name], ENGINES[name].strategy
    given = dict(options.get("engine_args") or {})
    if engine.hosted and (python := given.pop("python", None)):
        path, options = "roll.strategies.infer.foreign.OtherInterpreterStrategy", options | {"engine_args": given}
        return named_object(path)(python, name, options)  # type: ignore[no-any-return]
    return named_object(path)(**options)  # type: ignore[no-any-return]
