"""Context parallelism: each rank computes some tokens of every sequence, and attention gathers the keys and values of the others.

A sequence is cut into 2·C pieces of equal length, of which rank r of C has the r-th and the (2·C - 1 - r)-th: causal attention is
then equally much work for all. The division is Megatron-core's, whose rotary embeddings follow it. Its own attention across ranks
is Transformer Engine's alone (its local one refuses); here torch's sees all keys that precede a piece. With grouped-query
attention they are a small part of a layer's activations, and its gradient is scattered back by the same collective.

`PipelineSchedule` leads a batch through the stages: cut into micro-batches by tokens, run in Megatron's 1F1B order, scored on the
last stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region, reduce_from_tensor_model_parallel_region
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right

from roll.core.algorithms.loss import Metrics
from roll.core.data.kept_tokens import KeptSets
from roll.core.data.microbatches import plan_microbatches
from roll.core.data.routes import unrouted
from roll.core.data.token_batch import Padded, TokenBatch
from roll.core.data.transfer import moved
from roll.strategies.routers import Routers
from roll.strategies.train.layout import RankMicrobatch, rank_microbatches
from roll.strategies.train.logprobs import EntropyMode
from roll.strategies.train.megatron.parallel import ModelParallel


class Predictors(NamedTuple):
    """This rank's tokens that predict a trained one, row by row, and the questions about each."""

    rows: Tensor
    """[R]"""
    own: Tensor
    """[R], column in this rank's share."""
    columns: Tensor
    """[R], column in the whole micro-batch."""
    targets: Tensor
    """[R], the tokens that they predict."""
    temperatures: Tensor
    """[R]"""
    entropy: EntropyMode
    kept: KeptSets | None
    """Kept sets of R tokens."""


class ContextShare:
    """The columns of a micro-batch that this rank computes."""

    def __init__(self, group: dist.ProcessGroup, sequence_parallel_ranks: int) -> None:
        """`sequence_parallel_ranks`: ranks that divide the share further; 1 without sequence parallelism."""
        self._group = group
        self._divided = sequence_parallel_ranks
        self._multiple = sequence_parallel_ranks * (2 * group.size() if group.size() > 1 else 1)

    def of(self, rows: Tensor) -> Tensor:
        """[B, T] -> [B, T_rank], after padding with 0 on the right until T can be divided."""
        padded = nn.functional.pad(rows, (0, -rows.shape[1] % self._multiple))
        return padded[:, own_columns(padded.shape[1], self._group, padded.device)]

    def routes(self, whole: Tensor) -> Tensor:
        """[B, T, layers, k] -> [N, layers, k] of the tokens that this rank's routers see, in their order."""
        added = unrouted(-whole.shape[1] % self._multiple, whole[0]).expand(len(whole), -1, -1, -1)
        padded = torch.cat([whole, added], 1)
        own = padded[:, own_columns(padded.shape[1], self._group, padded.device)].transpose(0, 1)
        if self._divided > 1:
            own = own.chunk(self._divided)[parallel_state.get_tensor_model_parallel_rank()]
        return own.flatten(0, 1)

    def predictors(self, micro: Padded, entropy: EntropyMode) -> Predictors:
        """The predictors of the trained tokens."""
        predicts = self.of(nn.functional.pad(micro.loss_mask[:, 1:], (0, 1)))
        rows, own = predicts.nonzero(as_tuple=True)
        columns = own_columns(predicts.shape[1] * self._group.size(), self._group, own.device)[own]
        kept = micro.kept
        if kept is not None:
            among_trained = micro.loss_mask.flatten().cumsum(0).view(micro.loss_mask.shape) - 1
            kept = kept[among_trained[rows, columns + 1]]
        return Predictors(rows, own, columns, micro.tokens[rows, columns + 1], micro.temperatures[rows], entropy, kept)

    def gather(self, values: Tensor) -> Tensor:
        """The sum over the ranks of tensors that each rank fills for its own tokens. The gradient of the sum flows back to each
        rank."""
        if self._group.size() == 1:
            return values
        whole: Tensor = reduce_from_tensor_model_parallel_region(values, group=self._group)
        return whole


def own_columns(length: int, group: dist.ProcessGroup, device: torch.device) -> Tensor:
    """[T / C], ascending, of T = `length`."""
    if group.size() == 1:
        return torch.arange(length, device=device)
    return _columns_of(group.rank(), length, group.size(), device)


def attention_over_ranks(query: Tensor, key: Tensor, value: Tensor, group: dist.ProcessGroup) -> Tensor:
    """softmax(q kᵀ / √d) v over what precedes in the whole sequence.

    Args:
        query, key, value: [B, H, T_rank, D], [B, G, T_rank, D], [B, G, T_rank, D], of this rank's tokens.

    Returns:
        [B, H, T_rank, D].
    """
    size, piece, queries_each = group.size(), query.shape[2] // 2, query.shape[1] // key.shape[1]
    length = 2 * piece * size
    order = torch.cat([_columns_of(rank, length, size, query.device) for rank in range(size)]).argsort()
    keys, values = (
        gather_from_sequence_parallel_region(x.permute(2, 0, 1, 3), group=group)[order].permute(1, 2, 0, 3) for x in (key, value)
    )
    outputs = []
    for index, q in zip((group.rank(), 2 * size - 1 - group.rank()), query.split(piece, 2), strict=True):
        seen = (index + 1) * piece
        # A mask of booleans, or grouped queries, would leave nothing but the kernel that writes [B, H, T, T] scores down.
        k, v = (x[:, :, :seen].repeat_interleave(queries_each, 1) for x in (keys, values))
        outputs.append(nn.functional.scaled_dot_product_attention(q, k, v, causal_lower_right(piece, seen)))
    return torch.cat(outputs, 2)


def _columns_of(rank: int, length: int, size: int, device: torch.device) -> Tensor:
    pieces = torch.arange(length, device=device).view(2 * size, -1)
    return torch.cat([pieces[rank], pieces[2 * size - 1 - rank]])


T = TypeVar("T")
OfRows: TypeAlias = Callable[[Padded, Predictors, Tensor], tuple[Tensor, T]]
"""Micro-batch, its rows, the head's output for them [R, ..] -> the loss to call `backward` on, and the value to return."""


class PipelineSchedule:
    """Shapes travel ahead of the tensors between stages, so every micro-batch is padded to its own longest sample only."""

    def __init__(self, model: nn.Module, parallel: ModelParallel, share: ContextShare, mixtures: slice, recomputes: bool) -> None:
        """`mixtures`: this stage's among all layers with experts. `recomputes`: the forward of a step is computed again."""
        self._model, self._parallel, self._share = model, parallel, share
        self._routers, self._mixtures, self._recomputes = Routers(model), mixtures, recomputes
        self.metrics: Metrics = {}
        """Metrics of the last forward."""

    def run(
        self, batch: TokenBatch, budget: int, of_rows: OfRows[T], train: bool, entropy: EntropyMode = "none"
    ) -> list[tuple[RankMicrobatch, T]]:
        """Returns each micro-batch with the result of `of_rows` on the last stage, and [] on the others. If `train`, gradients
        are accumulated, and summed over the ranks after the last. `entropy`: asked of a policy besides the log-probs."""
        # But for experts no collective joins the micro-batches of data-parallel ranks, so each runs as many as it has.
        plan = plan_microbatches(batch.lengths.tolist(), budget)
        parts = list(rank_microbatches(batch, plan, self._parallel.max_over_experts))
        self._routers.replay(None)
        results = get_forward_backward_func()(
            forward_step_func=partial(self._step, of_rows, entropy, train),
            data_iterator=(moved([part.padded], self._parallel.device)[0] for part in parts),
            model=[self._model],
            num_microbatches=len(parts),
            seq_length=0,  # both sizes are read from the tensors, see the class
            micro_batch_size=0,
            forward_only=not train,
            collect_non_loss_data=not train,
        )
        return list(zip(parts, results, strict=self._parallel.last_stage))

    def _step(
        self, of_rows: OfRows[T], entropy: EntropyMode, train: bool, data: Iterator[Padded], model: nn.Module
    ) -> tuple[Tensor, Callable[..., object]]:
        micro = next(data)
        at = self._share.predictors(micro, entropy)
        routes = None
        if micro.routes is not None and self._mixtures.stop > self._mixtures.start:
            routes = self._share.routes(micro.routes[:, :, self._mixtures])
        self._routers.replay(routes, again=train and self._recomputes)
        # GPTModel hands its loss mask on to the head.
        output = model(self._share.of(micro.tokens), None, None, loss_mask=at)
        self.metrics = self._routers.forward_made()

        def result(said: Tensor, non_loss_data: bool = False) -> Any:
            value, data = of_rows(micro, at, said)
            no_tokens = torch.zeros((), dtype=torch.int, device=value.device)
            return data if non_loss_data else (value, no_tokens, data)

        return output, result
