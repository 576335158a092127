"""Sequence classifiers with one output, by `strategy_name`: tokens go in, a number comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from roll.core.configs.dotted_path import named_object
from roll.core.configs.engines import ENGINES, engines_that
from roll.strategies.infer.foreign import OtherInterpreterEngine


class Scorer(Protocol):
    """Its coroutines belong to one event loop; many calls of `score` may be open."""

    async def score(self, token_ids: Sequence[int]) -> float:
        """The classifier's output, no activation applied, for a text of at most `max_length` tokens."""

    async def close(self) -> None: ...


def make_scorer(name: str, options: dict[str, Any]) -> Scorer:
    """Loads the model. Raises `ValueError` for a folder that holds no classifier with one output."""
    engine, given = ENGINES.get(name), dict(options.get("engine_args") or {})
    if engine is None or not engine.scorer:
        raise ValueError(f"{name} serves no classifier; known: {', '.join(engines_that('scorer'))}")
    if engine.hosted and (python := given.pop("python", None)):
        return OtherInterpreterScorer(python, name, options | {"engine_args": given})
    return named_object(engine.scorer)(**options)  # type: ignore[no-any-return]


class OtherInterpreterScorer(OtherInterpreterEngine):
    """Implements `Scorer`."""

    host = "roll.strategies.score:ScorerHost"

    async def score(self, token_ids: Sequence[int]) -> float:
        return float(await self._call("score", list(token_ids)))


class ScorerHost:
    def __init__(self, strategy_name: str, options: dict[str, object]) -> None:
        self._scorer = make_scorer(strategy_name, options)
        self.close = self._scorer.close

    async def score(self, token_ids: Sequence[int]) -> float:
        return await self._scorer.score(token_ids)
