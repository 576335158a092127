"""A sequence classifier with one output, by transformers: what waits is batched."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import torch

from roll.strategies.model_folder import load_classifier

_Waiting = tuple[Sequence[int], "asyncio.Future[float]"]


class HFScorer:
    """Implements `Scorer`. `max_tokens`: of a batch, padding included; a longer text is a batch of its own."""

    def __init__(
        self,
        model_path: str,
        *,
        max_tokens: int,
        dtype: str = "float32",
        device: str = "cpu",
        attn_implementation: str = "sdpa",
        threads: int | None = None,
        **unread: object,
    ) -> None:
        """`unread`: options of an engine that samples."""
        model: Any = load_classifier(Path(model_path), getattr(torch, dtype), attn_implementation)
        self._model = model.to(device).eval()
        self._max_tokens, self._device, self._threads = max_tokens, device, threads
        self._waiting: deque[_Waiting] = deque()
        self._scoring: asyncio.Task[None] | None = None

    async def score(self, token_ids: Sequence[int]) -> float:
        result: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append((token_ids, result))
        if self._scoring is None or self._scoring.done():
            self._scoring = asyncio.create_task(self._score())
        return await result

    async def close(self) -> None:
        if self._scoring is not None:
            self._scoring.cancel()
            await asyncio.wait([self._scoring])

    async def _score(self) -> None:
        """Whoever is cancelled is left out of the batches that follow. An error is that of each text in its batch."""
        while batch := next_batch(self._waiting, self._max_tokens):
            try:
                values = await asyncio.to_thread(self._forward, [token_ids for token_ids, _ in batch])
            except Exception as error:  # boundary: a model may raise anything
                for _, result in batch:
                    if not result.done():
                        result.set_exception(error)
                continue
            for (_, result), value in zip(batch, values, strict=True):
                if not result.done():
                    result.set_result(value)

    @torch.inference_mode()
    def _forward(self, texts: Sequence[Sequence[int]]) -> list[float]:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        longest, seen = max(map(len, texts)), {token for text in texts for token in text}
        # transformers takes the last token that is no padding, also where a text ends with the padding token: padded is with a
        # token that no text of the batch has.
        filler = next(token for token in count() if token not in seen)
        self._model.config.get_text_config().pad_token_id = filler
        ids = torch.tensor([[*text, *[filler] * (longest - len(text))] for text in texts], device=self._device)
        mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts], device=self._device)
        values: list[float] = self._model(input_ids=ids, attention_mask=mask).logits[:, 0].float().tolist()
        return values


def next_batch(waiting: deque[_Waiting], max_tokens: int) -> list[_Waiting]:
    """Takes the first that wait, as many as fit into `max_tokens` with padding, and one at least."""
    batch: list[_Waiting] = []
    longest = 0
    while waiting:
        token_ids, result = waiting[0]
        longest = max(longest, len(token_ids))
        if batch and longest * (len(batch) + 1) > max_tokens:
            break
        waiting.popleft()
        if not result.done():
            batch.append((token_ids, result))
    return batch
