"""The far side of a scorer that runs in another interpreter."""

from __future__ import annotations

from collections.abc import Sequence

from roll.strategies.score import make_scorer


class ScorerHost:
    def __init__(self, strategy_name: str, options: dict[str, object]) -> None:
        self._scorer = make_scorer(strategy_name, options)
        self.close = self._scorer.close

    async def score(self, token_ids: Sequence[int]) -> float:
        return await self._scorer.score(token_ids)
