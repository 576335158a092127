"""A batch through the pipeline: cut into micro-batches by tokens, run in Megatron's 1F1B order, scored on the last stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor, nn

from roll.data.token_batch import Padded, TokenBatch
from roll.strategies.train.megatron.parallel import ModelParallel
from roll.strategies.train.rank_microbatches import RankMicrobatch, rank_microbatches

OfLogits = Callable[[Padded, Tensor], tuple[Tensor, Any]]
"""Micro-batch, logits [R, V_rank] -> what to call `backward` on, and what to return."""


class Schedule:
    """Shapes travel ahead of the tensors between stages, so every micro-batch is padded to its own longest sample only."""

    def __init__(self, model: nn.Module, parallel: ModelParallel, sequence_parallel: bool) -> None:
        self._model, self._parallel = model, parallel
        self._length_multiple = parallel.tensor if sequence_parallel else 1

    def run(self, batch: TokenBatch, budget: int, of_logits: OfLogits, train: bool) -> list[tuple[RankMicrobatch, Any]]:
        """On the last stage each micro-batch with what `of_logits` returned; [] on the others. If `train`, gradients are
        accumulated, and summed over the ranks after the last."""
        # No collective joins the micro-batches of data-parallel ranks, so each runs as many as it has.
        parts = list(rank_microbatches(batch, budget, lambda own: own, self._parallel.device))
        results = get_forward_backward_func()(
            forward_step_func=partial(self._step, of_logits),
            data_iterator=(part.padded for part in parts),
            model=[self._model],
            num_microbatches=len(parts),
            seq_length=0,  # both sizes are read from the tensors, see the class
            micro_batch_size=0,
            forward_only=not train,
            collect_non_loss_data=not train,
        )
        return list(zip(parts, results, strict=self._parallel.last_stage))

    def _step(self, of_logits: OfLogits, data: Iterator[Padded], model: nn.Module) -> tuple[Tensor, Callable[..., Any]]:
        micro = next(data)
        padding = (0, -micro.tokens.shape[1] % self._length_multiple)
        tokens, mask = (nn.functional.pad(x, padding) for x in (micro.tokens, micro.loss_mask))
        output = model(tokens, None, None, loss_mask=mask)

        def result(logits: Tensor, non_loss_data: bool = False) -> Any:
            value, data = of_logits(micro, logits)
            no_tokens = torch.zeros((), dtype=torch.int, device=value.device)
            return data if non_loss_data else (value, no_tokens, data)

        return output, result
