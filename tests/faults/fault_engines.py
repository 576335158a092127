"""An engine that stands for many: it holds requests for a while, and computes nothing."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence

from roll.core.data.sample import VersionSpan
from roll.core.workers.infer_interface import GenerateRequest, GenerateResult
from roll.core.workers.workers import InferWorker

ANSWER_S = 2.0
SYMBOLS = range(3, 13)
"""Digits, in the vocabulary of `tiny_world`."""


class AnswersLater(InferWorker):
    """Its weights are real."""

    def __init__(self, strategy_name: str, options: dict[str, object]) -> None:
        super().__init__(strategy_name, options)
        self._open: dict[str, asyncio.Event] = {}

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        aborted = self._open[request.request_id] = asyncio.Event()
        try:
            await asyncio.wait_for(aborted.wait(), ANSWER_S)
            return GenerateResult.without_tokens(request, "abort")
        except TimeoutError:
            return await self._answer(request)
        finally:
            del self._open[request.request_id]

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        for each in [*self._open] if request_ids is None else request_ids:
            if each in self._open:
                self._open[each].set()

    async def _answer(self, request: GenerateRequest) -> GenerateResult:
        count = request.sampling.max_new_tokens - len(request.partial_ids)
        ids = random.Random(request.request_id).choices(SYMBOLS, k=count)
        spans = [VersionSpan(0, count, (await self.stats()).version)]
        logprobs, text = [-math.log(len(SYMBOLS))] * count, "".join(str(each - SYMBOLS.start) for each in ids)
        return GenerateResult(request.request_id, ids, logprobs, spans, "length", text)
