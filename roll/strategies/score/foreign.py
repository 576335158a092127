"""A scorer that runs in another interpreter."""

from __future__ import annotations

from collections.abc import Sequence

from roll.strategies.infer.foreign.strategy import OtherInterpreterEngine


class OtherInterpreterScorer(OtherInterpreterEngine):
    """Implements `Scorer`."""

    host = "roll.strategies.score.host:ScorerHost"

    async def score(self, token_ids: Sequence[int]) -> float:
        return float(await self._call("score", list(token_ids)))
