"""The worker of a teacher that is served by an inference engine."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roll.core.data.token_batch import TokenBatch
from roll.strategies.score import make_teacher


class EngineTeacher:
    def __init__(self, name: str, options: dict[str, Any]) -> None:
        """`name`: of the engine."""
        self._engine = make_teacher(name, options)
        self.close = self._engine.close

    async def teach(self, batch: TokenBatch, top: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns what `TrainWorker.teach` does; the engine has as many requests at once as the batch has samples."""
        masks = batch.loss_mask.split(batch.lengths.tolist())
        places = [mask.nonzero().squeeze(1).tolist() for mask in masks]
        asked = (self._engine.answer(row.tolist(), own) for row, own in zip(batch.rows, places, strict=True))
        answers = await asyncio.gather(*asked)
        shape = (-1, top)
        logprobs = np.concatenate([np.zeros(0, np.float32), *(each.logprobs for each in answers)])
        ids = np.concatenate([np.zeros((0, top), np.int32), *(each.ids.reshape(shape) for each in answers)])
        most = np.concatenate([np.zeros((0, top), np.float32), *(each.top.reshape(shape) for each in answers)])
        return torch.from_numpy(logprobs), torch.from_numpy(ids), torch.from_numpy(most)
