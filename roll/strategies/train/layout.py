"""A rank's micro-batches of a step, and how each goes through a model: a padded row for each sample, or one row in which each
common prefix stands once.

Every rank has equally many, so that their collectives match. The outputs that are asked for are those that predict trained
tokens, and the loss sees them as [B, T] again. It is planned on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from roll.core.data.routes import unrouted
from roll.core.data.token_batch import PER_SAMPLE, Padded, TokenBatch
from roll.core.data.transfer import Move
from roll.strategies.train.forest_attention import ForestAttention
from roll.strategies.train.packed_attention import PackedAttention
from roll.strategies.train.ulysses import DividedAttention, ScoredTokens


class RankMicrobatch(NamedTuple):
    indices: list[int]
    """Samples of the rank's batch; none in one that only keeps step with the other ranks."""
    padded: Padded
    last: bool


def rank_microbatches(batch: TokenBatch, plan: Sequence[list[int]], all_max: Callable[[int], int]) -> Iterator[RankMicrobatch]:
    """`plan`: the samples of each micro-batch. `all_max`: a collective, the largest of the ranks' values."""
    count = all_max(max(1, len(plan)))
    for position in range(count):
        indices = plan[position] if position < len(plan) else []
        padded = batch.select(indices).padded() if indices else _without_samples(batch)
        yield RankMicrobatch(indices, padded, position == count - 1)


def _without_samples(batch: TokenBatch) -> Padded:
    """A micro-batch of one masked token, with the fields that `batch` has: it adds 0 to the loss, the gradient and all
    metrics."""
    values: dict[str, Any] = {}
    for each in fields(batch):
        value = getattr(batch, each.name)
        if isinstance(value, Tensor):
            values[each.name] = value.new_zeros(1 if each.name in PER_SAMPLE else (1, 1))
    values["lengths"] = batch.lengths.new_ones(1)
    values["teacher_top"] = None if batch.teacher_top is None else batch.teacher_top[torch.zeros(0, dtype=torch.int64)]
    values["routes"] = None if batch.routes is None else unrouted(1, batch.routes)[None]
    return Padded(attention_mask=torch.ones(1, 1, dtype=torch.bool), **values)


@dataclass(frozen=True, slots=True)
class Layout:
    tokens: Tensor
    """[R, W] int64, the rows that the model gets."""
    columns: Tensor
    """[C] int64, ascending: the columns of these rows whose outputs are asked for."""
    places: Tensor
    """[K] int64, for each trained token, in the order of the loss mask, the one of the R·C outputs that predicts it; [K_rank] of
    those that are `scored` here."""
    trained: tuple[Tensor, Tensor]
    """[K] each: row and column in the micro-batch of each trained token."""
    routes: Tensor | None = None
    """[R, W, layers, k] the experts of each token; None: the routers choose them."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the model."""
    scored: ScoredTokens | None = None
    """This rank's share, where the rows are a part of the micro-batch's; None: they are all of it."""

    def each(self, move: Move) -> Layout:
        row, column = self.trained
        return Layout(
            move(self.tokens),
            move(self.columns),
            move(self.places),
            (move(row), move(column)),
            None if self.routes is None else move(self.routes),
            {name: move(value) if isinstance(value, Tensor) else value.each(move) for name, value in self.arguments.items()},
            None if self.scored is None else self.scored.each(move),
        )

    def spread(self, values: Tensor, micro: Padded) -> Tensor:
        """[B, T] of values [K] of the trained tokens; 0 elsewhere."""
        return values.new_zeros(micro.tokens.shape).index_put(self.trained, values)


def padded_rows(micro: Padded) -> Layout:
    """Padding is on the right and attention causal: no token sees it, so the kernel needs no mask."""
    columns = micro.loss_mask[:, 1:].any(0).nonzero().squeeze(1)
    rows, predictors = micro.loss_mask[:, 1:].nonzero(as_tuple=True)
    places = rows * len(columns) + torch.searchsorted(columns, predictors)
    return Layout(micro.tokens, columns, places, (rows, predictors + 1), micro.routes)


def forest_row(micro: Padded, packed: bool = False) -> Layout:
    """One row for all samples, with a `ForestAttention`, or a `PackedAttention`, in its arguments. What a sample shares with its
    predecessor in the micro-batch stands there once: a hidden state depends on the tokens before it alone, and its gradients
    add up."""
    present, shared, own = micro.attention_mask, _shared(micro), own_tokens(micro)
    steps = torch.arange(present.shape[1])
    index = _places_in_row(own, shared)
    rows, predictors = micro.loss_mask[:, 1:].nonzero(as_tuple=True)
    asked = index[rows, predictors]
    columns = asked.unique()
    positions = steps.expand_as(present)[own]
    attention = (PackedAttention if packed else ForestAttention)(index, micro.lengths.tolist(), shared.tolist())
    return Layout(
        micro.tokens[own][None],
        columns,
        torch.searchsorted(columns, asked),
        (rows, predictors + 1),
        None if micro.routes is None else micro.routes[own][None],
        {"position_ids": positions[None], "forest": attention},
    )


def divided(layout: Layout, group: dist.ProcessGroup) -> Layout:
    """Returns this rank's part of a forest's row: its stretch of it, padded until all are equally long."""
    width, ranks = layout.tokens.shape[1], group.size()
    each = -(-width // ranks)
    stretch = slice(group.rank() * each, (group.rank() + 1) * each)
    first, last = torch.searchsorted(layout.columns, torch.tensor([stretch.start, stretch.stop])).tolist()
    own = ((layout.places >= first) & (layout.places < last)).nonzero().squeeze(1)

    def part(row: Tensor) -> Tensor:
        return pad(row, (0, each * ranks - width))[:, stretch]

    routes, forest = layout.routes, DividedAttention(layout.arguments["forest"], width, group)
    if routes is not None:
        routes = torch.cat([routes[0], unrouted(each * ranks - width, routes[0])])[None, stretch]
    return replace(
        layout,
        tokens=part(layout.tokens),
        columns=layout.columns[first:last] - stretch.start,
        places=layout.places[own] - first,
        routes=routes,
        arguments={"position_ids": part(layout.arguments["position_ids"]), "forest": forest},
        scored=ScoredTokens(group, own, len(layout.places)),
    )


def own_tokens(micro: Padded) -> Tensor:
    """Returns [B, T], true where a token stands in a forest's row: where it is not shared with the sample's predecessor."""
    return micro.attention_mask & (torch.arange(micro.tokens.shape[1]) >= _shared(micro)[:, None])


def _shared(micro: Padded) -> Tensor:
    """[B] first tokens of each sample that its predecessor begins with, too, computed with the same experts."""
    tokens, present = micro.tokens, micro.attention_mask
    equal = (tokens[1:] == tokens[:-1]) & present[1:] & present[:-1]
    if micro.routes is not None:
        equal &= (micro.routes[1:] == micro.routes[:-1]).flatten(2).all(2)
    return torch.cat([tokens.new_zeros(1), ((~equal).cumsum(1) == 0).sum(1)])


def _places_in_row(own: Tensor, shared: Tensor) -> Tensor:
    """[B, T] int64, where in the row each token of each sample stands: its own tokens one after the other, the others where its
    predecessor has them."""
    index = (own.flatten().cumsum(0) - 1).view(own.shape)
    steps = torch.arange(own.shape[1])
    for sample in range(1, len(index)):
        index[sample] = torch.where(steps < shared[sample], index[sample - 1], index[sample])
    return index
