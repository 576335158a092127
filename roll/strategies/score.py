"""Engines that read texts, by `strategy_name`: classifiers, of which a number comes out, and teachers, of which log-probs do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from roll.core.configs.dotted_path import named_object
from roll.core.configs.engines import ENGINES, engines_that
from roll.core.data.taught import TeacherAnswer
from roll.strategies.infer.foreign import OtherInterpreterEngine


class Scorer(Protocol):
    """Its coroutines belong to one event loop; many calls of `score` may be open."""

    async def score(self, token_ids: Sequence[int]) -> float:
        """The classifier's output, no activation applied, for a text of at most `max_length` tokens."""

    async def close(self) -> None: ...


class Teacher(Protocol):
    """Its coroutines belong to one event loop; many calls of `answer` may be open."""

    async def answer(self, token_ids: Sequence[int], places: Sequence[int]) -> TeacherAnswer:
        """The log-probs of the tokens in these places, none of them the first, and the most probable tokens there."""

    async def close(self) -> None: ...


def make_scorer(name: str, options: dict[str, Any]) -> Scorer:
    """Loads the model. Raises `ValueError` for a folder that holds no classifier with one output."""
    return _made("scorer", "serves no classifier", OtherInterpreterScorer, name, options)  # type: ignore[no-any-return]


def make_teacher(name: str, options: dict[str, Any]) -> Teacher:
    return _made("teacher", "says no log-probs of texts", OtherInterpreterTeacher, name, options)  # type: ignore[no-any-return]


def _made(trait: str, lacks: str, elsewhere: type[OtherInterpreterEngine], name: str, options: dict[str, Any]) -> Any:
    engine, given = ENGINES.get(name), dict(options.get("engine_args") or {})
    if engine is None or not getattr(engine, trait):
        raise ValueError(f"{name} {lacks}; known: {', '.join(engines_that(trait))}")
    if engine.hosted and (python := given.pop("python", None)):
        return elsewhere(python, name, options | {"engine_args": given})
    return named_object(getattr(engine, trait))(**options)


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


class OtherInterpreterTeacher(OtherInterpreterEngine):
    """Implements `Teacher`."""

    host = "roll.strategies.score:TeacherHost"

    async def answer(self, token_ids: Sequence[int], places: Sequence[int]) -> TeacherAnswer:
        return TeacherAnswer.from_json(await self._call("answer", list(token_ids), list(places)))


class TeacherHost:
    def __init__(self, strategy_name: str, options: dict[str, object]) -> None:
        self._teacher = make_teacher(strategy_name, options)
        self.close = self._teacher.close

    async def answer(self, token_ids: Sequence[int], places: Sequence[int]) -> dict[str, Any]:
        return dict((await self._teacher.answer(token_ids, places)).to_json())
