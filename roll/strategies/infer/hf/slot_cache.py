"""The keys and values of a slot engine's running requests, which its model sees as `past_key_values`.

There is one slot per running request, for continuous batching. Each layer holds `keys` and `values` of shape [slots,
kv_heads, capacity, head_dim]. The rows in use are always 0 .. n-1, so attention reads the view `[:n, :, :width]` and nothing is
gathered or concatenated. Every row writes at its own position. Invariant: what lies beyond a row's length is finite, so a mask of
-inf removes it entirely.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from roll.core.configs.arguments import KV_GRANULE
from roll.plan.memory import LEAST_WIDTH, padded
from roll.strategies.infer.hf.kept_rows import Beginning

Span = tuple[int, int, int]
"""A slot, and from which of its tokens to which."""
Moves = Iterable[tuple[int, int, int]]
"""Source slot, target slot, number of tokens; one after the other."""


class SlotCache(Cache):  # type: ignore[misc]
    """The model's `past_key_values`. `begin_prefill` or `begin_continuation` announces the writes of the next forward."""

    def __init__(self, slots: int, max_length: int, num_layers: int, layer: type[SlotLayer] | None = None) -> None:
        self.slots = slots
        self.max_length = max_length
        self.capacity = 0
        self.start = 0
        """First row of the forward under way, or about to start."""
        self.count = 0
        self.width = 0
        """Tokens of KV that attention reads."""
        self.write_index: tuple[Any, ...] = ()
        """Places of the new states in [slots, kv_heads, capacity, head_dim]."""
        self.prefilling = False
        self.routes: Tensor | None = None
        """[slots, capacity, layers, top_k] the experts of each cached token; None while nobody asks for them."""
        self.reach: Tensor | None = None
        """[slots, capacity] the largest position up to each cached token; None where it is the token's own."""
        self.slot_layers = [(layer or SlotLayer)(self) for _ in range(num_layers)]
        super().__init__(layers=list(self.slot_layers))

    def begin_prefill(self, start: int, count: int, width: int) -> None:
        """The next forward holds `count` whole (right-padded) sequences of `width` tokens for the rows from `start` on."""
        self.reserve(width)
        self.start, self.count, self.width, self.prefilling = start, count, width, True
        self.write_index = (slice(start, start + count), slice(None), slice(0, width))

    def begin_continuation(self, start: int, positions: Tensor, width: int) -> None:
        """The next forward holds tokens for each row from `start` on, at `positions` [count, tokens] (all < `width`)."""
        self.reserve(width)
        rows = torch.arange(start, start + len(positions), device=positions.device)
        self.begin_rows(rows, positions, width, start)

    def begin_rows(self, rows: Tensor, positions: Tensor, width: int, start: int = 0) -> None:
        """The same with room for them. Attention reads the rows from `start` on; new states go to `rows` [count]."""
        self.start, self.count, self.width, self.prefilling = start, len(positions), width, False
        self.write_index = (rows[:, None], slice(None), positions)

    def reads(self, width: int) -> int:
        """Tokens that the mask of a graph's rows is about, if the longest row has `width`."""
        return padded(width, self.capacity, LEAST_WIDTH)

    @property
    def for_attention(self) -> dict[str, Any]:
        """Arguments of the forward that is to be made, for the layers' attention."""
        return {}

    def room(self, rows: int) -> int:
        """The blocks that the first `rows` slots leave; without blocks there is room for every slot."""
        return sys.maxsize

    def needs(self, tokens: int) -> int:
        """Blocks of a row of so many tokens."""
        return 0

    def own(self, spans: Sequence[Span]) -> bool:
        """Makes room for these tokens, which are written next; whether there is as much."""
        return True

    def keep_only(self, rows: int, kept: Collection[int]) -> None:
        """Gives up the contents of other slots than the first `rows` and `kept`."""

    def take(self, first: int, begun: Sequence[Beginning | None], moves: Moves) -> None:
        """Brings to the slots from `first` on their beginnings, after `moves` of their contents."""
        each_with = [(slot, each) for slot, each in enumerate(begun, first) if each is not None and each.slot != slot]
        copied = {slot: self.read(*each) for slot, each in each_with}
        for move in moves:
            self.copy(*move)
        for slot, states in copied.items():
            self.write(slot, states)

    def use(self, rows: int) -> float:
        """The share that the first `rows` slots use."""
        return rows / self.slots

    def of_slot(self, states: Tensor, slot: int, start: int, stop: int) -> Tensor:
        """Returns a slot's tokens from `start` to `stop` of `states`, for reading."""
        return states[slot, start:stop]

    def read(self, row: int, length: int) -> list[Tensor]:
        """A copy of its first `length` tokens, for `write`."""
        return [states[:length].clone() for states in self._row(row)]

    def write(self, row: int, copied: Sequence[Tensor]) -> None:
        for states, of_row in zip(self._row(row), copied, strict=True):
            states[: len(of_row)] = of_row

    def swap(self, first: int, second: int, lengths: tuple[int, int]) -> None:
        """Row `first` becomes row `second` and the other way round, as long as they are."""
        kept = self.read(first, lengths[0])
        self.copy(second, first, lengths[1])
        self.write(second, kept)

    def copy(self, source: int, target: int, length: int) -> None:
        """Row `target` becomes row `source` (its first `length` tokens)."""
        for of_target, of_source in zip(self._row(target), self._row(source), strict=True):
            of_target[:length] = of_source[:length]

    def _row(self, row: int) -> list[Tensor]:
        """Views [capacity, ...] of all that it has."""
        held = [states[row].transpose(0, 1) for layer in self.slot_layers for states in layer.held]
        return [*held, *(each[row] for each in (self.routes, self.reach) if each is not None)]

    def store_routes(self, chosen: Tensor) -> None:
        """Stores the experts chosen by the last forward: [tokens, layers, top_k]."""
        self.routes = self._stored(self.routes, chosen, chosen.shape[1:])

    def store_reach(self, largest: Tensor) -> None:
        """Stores the values for the next forward: [rows, tokens]."""
        self.reach = self._stored(self.reach, largest, torch.Size())

    def _stored(self, held: Tensor | None, values: Tensor, shape: torch.Size) -> Tensor:
        """Returns the values of each cached token, with those that the forward writes."""
        if held is None or held.shape[1] < self.capacity:
            before, held = held, values.new_zeros(self.slots, self.capacity, *shape)
            if before is not None:
                held[:, : before.shape[1]] = before
        rows, _, tokens = self.write_index
        held[rows, tokens] = values.view(held[rows, tokens].shape)
        return held

    def free(self) -> None:
        """Gives the memory back; the next forward allocates again."""
        self.capacity = 0
        self.routes = self.reach = None
        for layer in self.slot_layers:
            layer.keys = layer.values = None
            layer.is_initialized = False

    @property
    def nbytes(self) -> int:
        return sum(states.numel() * states.element_size() for layer in self.slot_layers for states in layer.held)

    def reserve(self, width: int) -> None:
        """Doubles the capacity until `width` tokens fit."""
        if width > self.max_length:
            raise ValueError(f"{width} tokens do not fit into max_length={self.max_length}")
        if width <= self.capacity:
            return
        doubled = max(width, 2 * self.capacity, 4 * KV_GRANULE)
        self.capacity = -(-min(doubled, self.max_length) // KV_GRANULE) * KV_GRANULE
        for layer in self.slot_layers:
            layer.grow()


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's share of a `SlotCache`; allocated when the model first shows the shape and type of its states."""

    is_sliding = False
    keys: Tensor | None
    values: Tensor | None

    def __init__(self, owner: SlotCache) -> None:
        super().__init__()
        self.owner = owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys = self._zeros(key_states)
        self.values = self._zeros(value_states)
        self.is_initialized = True

    @property
    def held(self) -> tuple[Tensor, ...]:
        """Keys and values; nothing before the first forward."""
        return () if self.keys is None or self.values is None else (self.keys, self.values)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Stores the new states [count, kv_heads, tokens, head_dim] and returns those that attention reads."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        owner, (keys, values) = self.owner, self.held
        if owner.prefilling:
            keys[owner.write_index] = key_states
            values[owner.write_index] = value_states
            return key_states, value_states
        keys[owner.write_index] = key_states.transpose(1, 2)
        values[owner.write_index] = value_states.transpose(1, 2)
        rows = slice(owner.start, owner.start + owner.count)
        return keys[rows, :, : owner.width], values[rows, :, : owner.width]

    def grow(self) -> None:
        if self.is_initialized:
            self.keys, self.values = (self._grown(states) for states in self.held)

    def _grown(self, states: Tensor) -> Tensor:
        larger = self._zeros(states)
        larger[:, :, : states.shape[2]] = states
        return larger

    def _zeros(self, like: Tensor) -> Tensor:
        return like.new_zeros(self.owner.slots, like.shape[1], self.owner.capacity, like.shape[3])

    # What transformers asks to build a mask when none is given: a causal one over the new tokens (prefill), none (decode).
    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return (query_length if self.owner.prefilling else self.owner.width), 0

    def get_seq_length(self) -> int:
        return 0 if self.owner.prefilling else self.owner.width - 1

    def get_max_length(self) -> int:
        return self.owner.max_length
