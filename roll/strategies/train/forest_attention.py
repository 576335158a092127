"""Attention over a row in which samples that begin alike share the tokens of their common prefix.

Each sample's own tokens attend to the path before them: keys and values of a path are gathered from the row, and paths of
similar length share a call of torch's kernel. A prefix that several samples share is gathered for each of them, which costs a
copy of keys and values, and is computed once in everything else: projections, feed-forward, norms, and their gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from roll.core.data.transfer import Move

FOREST_SDPA = "forest_sdpa"
LONGEST_QUERY = 1024
"""A path's own tokens are cut into pieces of so many where they need a mask: what it covers in vain stays small."""
SMALL_CALL, LARGE_CALL = 1 << 16, 1 << 24
"""Products of queries and keys of a call, padding included: below the first a call costs more than its padding; above the second
its mask takes more memory than the calls saved are worth."""
MOST_PADDING = 1.5


@dataclass(frozen=True, slots=True)
class _Piece:
    """Queries `[first, first + queries)` of a sample, which attend to its tokens up to the last of them."""

    sample: int
    first: int
    queries: int
    masked: bool

    @property
    def keys(self) -> int:
        return self.first + self.queries


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of the kernel, for S pieces."""

    queries: Tensor
    """[S, q] int64, places in the row; padding repeats the first token."""
    keys: Tensor
    """[S, k] int64."""
    first: Tensor | None
    """[S] the number of keys before the first query; None if it is 0 everywhere."""


class Attention(Protocol):
    """Attention among a row's tokens, in every layer."""

    layers: int
    """Layers that have attended."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None) -> Tensor:
        """[1, N, heads, d] for query [1, heads, N, d], key and value [1, kv_heads, N, d]."""


class ForestAttention:
    """The kernel's calls for a row, the same in every layer."""

    def __init__(self, index: Tensor, lengths: Sequence[int], shared: Sequence[int]) -> None:
        """`index`: [B, T] int64, the place in the row of each token of each sample; on the host, as all planning is."""
        calls = _calls([piece for i in range(len(lengths)) for piece in _pieces(i, lengths[i], shared[i])])
        self._calls = [_call(index, pieces) for pieces in calls]
        # Where each token of the row comes out: the calls' outputs one after the other, padding included.
        said, offset = [], 0
        placed = []
        for pieces, call in zip(calls, self._calls, strict=True):
            width = call.queries.shape[1]
            for row, piece in enumerate(pieces):
                start = offset + row * width
                said.append(torch.arange(start, start + piece.queries))
                placed.append(index[piece.sample, piece.first : piece.keys])
            offset += len(pieces) * width
        self._outputs = torch.cat(said)[torch.cat(placed).argsort()]
        self._masks: dict[tuple[int, torch.dtype, int | None], Tensor] = {}
        self.layers = 0
        """Layers that have attended."""

    def each(self, move: Move) -> ForestAttention:
        self._outputs = move(self._outputs)
        self._calls = [_Call(move(c.queries), move(c.keys), None if c.first is None else move(c.first)) for c in self._calls]
        return self

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None) -> Tensor:
        self.layers += 1
        q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
        outputs = []
        for number, call in enumerate(self._calls):
            of_call = (_gathered(q, call.queries), _gathered(k, call.keys), _gathered(v, call.keys))
            out = _attended(*of_call, self._mask(number, q.dtype, window), scaling)
            outputs.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).index_select(0, self._outputs)[None]

    def _mask(self, number: int, dtype: torch.dtype, window: int | None) -> Tensor | None:
        """[S, 1, q, k] to add, the same for all layers of a kind; None where plain causal attention is right."""
        call = self._calls[number]
        (_, queries), keys = call.queries.shape, call.keys.shape[1]
        if window is not None and keys <= window:
            window = None
        if call.first is None and window is None:
            return None
        if (number, dtype, window) not in self._masks:
            at = torch.arange(queries, device=call.keys.device)[:, None]
            # Padded queries stand at the last key: what a window would hide from them entirely is NaN in some kernels.
            at = at if call.first is None else (at + call.first[:, None, None]).clamp(max=keys - 1)
            seen = torch.arange(keys, device=call.keys.device)
            hidden = seen > at if window is None else (seen > at) | (seen <= at - window)
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -math.inf)
            self._masks[number, dtype, window] = mask.view(-1, 1, queries, keys)
        return self._masks[number, dtype, window]


def _attended(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """[S, heads, q, d]; causal where there is no mask."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and mask is not None and query.device.type != "cpu":
        # An accelerator's fast kernels take a mask, or fewer heads of keys than of queries, but not both.
        key, value, groups = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1), 1
    return scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=groups > 1
    )


def _gathered(row: Tensor, index: Tensor) -> Tensor:
    """[S, heads, n, d] of row [N, heads, d] at index [S, n]."""
    return row.index_select(0, index.flatten()).view(*index.shape, *row.shape[1:]).transpose(1, 2)


def _pieces(sample: int, length: int, shared: int) -> list[_Piece]:
    """A sample's own tokens, in pieces where they need a mask."""
    if not shared:
        return [_Piece(sample, 0, length, False)]
    starts = range(shared, length, LONGEST_QUERY)
    return [_Piece(sample, start, min(LONGEST_QUERY, length - start), True) for start in starts]


def _calls(pieces: Sequence[_Piece]) -> list[list[_Piece]]:
    """Pieces that go into one call each: of similar length, so that little is padding."""
    calls: list[list[_Piece]] = []
    real = queries = keys = 0
    for piece in sorted(pieces, key=lambda p: (p.masked, -p.keys, -p.queries, p.sample)):
        wide = max(queries, piece.queries)
        padded, wanted = (len(calls[-1]) + 1 if calls else 1) * wide * keys, real + piece.queries * piece.keys
        fits = padded <= min(LARGE_CALL, max(SMALL_CALL, MOST_PADDING * wanted))
        if calls and calls[-1][0].masked == piece.masked and fits:
            calls[-1].append(piece)
            real, queries = wanted, wide
        else:
            calls.append([piece])
            real, queries, keys = piece.queries * piece.keys, piece.queries, piece.keys
    return calls


def _call(index: Tensor, pieces: Sequence[_Piece]) -> _Call:
    wide, keys = max(piece.queries for piece in pieces), max(piece.keys for piece in pieces)

    def rows(parts: list[Tensor], width: int) -> Tensor:
        return torch.stack([pad(part, (0, width - len(part))) for part in parts])

    queries = rows([index[p.sample, p.first : p.keys] for p in pieces], wide)
    first = torch.tensor([p.first for p in pieces]) if pieces[0].masked else None
    return _Call(queries, rows([index[p.sample, : p.keys] for p in pieces], keys), first)


def forest_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    forest: Attention | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' interface of attention: [B, tokens, heads, d]. Without a `forest` rows attend causally, each for itself."""
    if forest is not None:
        return forest(query, key, value, scaling, sliding_window), None
    if sliding_window is not None and query.shape[2] > sliding_window:
        raise ValueError("rows longer than a window of attention need a forest")
    plain: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
    )
    return plain


AttentionInterface.register(FOREST_SDPA, forest_sdpa)  # and no masks: transformers makes none, nor looks whether it should


def keep_out_of_graphs() -> None:
    """From now on layers that are compiled call the kernel between two graphs: its calls are another row's each time."""
    AttentionInterface.register(FOREST_SDPA, torch.compiler.disable(forest_sdpa))


ATTENTION = {"full_attention", "sliding_attention"}


def check_attended(model: PreTrainedModel, forest: Attention) -> None:
    """Checks a forward pass: `ValueError` if some layer mixed tokens in another way than by the forest."""
    config: Any = model.config.get_text_config()
    if forest.layers < config.num_hidden_layers:
        raise ValueError(
            f"{forest.layers} of {config.num_hidden_layers} layers of a {config.model_type} asked for attention: such a model "
            "cannot share prefixes; fix: model_args.attn_implementation: eager"
        )


def attends_by_forest(model: PreTrainedModel) -> bool:
    """True if every layer of the model mixes tokens by attention alone, which asks the interface and knows positions from
    `position_ids`."""
    config: Any = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    other = ("attn_logit_softcapping", "alibi", "attention_sink")
    return (
        config._attn_implementation == "sdpa"
        and bool(getattr(model, "_supports_attention_backend", False))
        and bool(getattr(config, "num_hidden_layers", 0))
        and kinds <= ATTENTION
        and not any(getattr(config, name, None) for name in other)
    )
