"""Key-value cache with one slot per running request, for continuous batching over any transformers causal LM.

Each layer holds `keys` and `values` of shape [slots, kv_heads, capacity, head_dim]. The rows in use are always 0 .. n-1, so
attention reads the view `[:n, :, :width]` and nothing is gathered or concatenated. Every row writes at its own position.
Invariant: what lies beyond a row's length is finite, so a mask of -inf removes it entirely.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from roll.configs.arguments import KV_GRANULE


class SlotCache(Cache):  # type: ignore[misc]
    """What the model sees as `past_key_values`. `begin_prefill` or `begin_decode` says what the next forward will write."""

    def __init__(self, slots: int, max_length: int, num_layers: int) -> None:
        self.slots = slots
        self.max_length = max_length
        self.capacity = 0
        self.start = 0
        """First row of the forward under way, or about to start."""
        self.count = 0
        self.width = 0
        """Tokens of KV that attention reads."""
        self.write_index: tuple[Any, ...] = ()
        """Where in [slots, kv_heads, capacity, head_dim] the new states go."""
        self.prefilling = False
        self.slot_layers = [SlotLayer(self) for _ in range(num_layers)]
        super().__init__(layers=list(self.slot_layers))

    def begin_prefill(self, start: int, count: int, width: int) -> None:
        """The next forward holds `count` whole (right-padded) sequences of `width` tokens for the rows from `start` on."""
        self._reserve(width)
        self.start, self.count, self.width, self.prefilling = start, count, width, True
        self.write_index = (slice(start, start + count), slice(None), slice(0, width))

    def begin_decode(self, start: int, positions: Tensor, width: int) -> None:
        """The next forward holds one token for each row from `start` on, at `positions` [count] (all < `width`)."""
        self._reserve(width)
        count = len(positions)
        self.start, self.count, self.width, self.prefilling = start, count, width, False
        rows = torch.arange(start, start + count, device=positions.device)
        self.write_index = (rows, slice(None), positions)

    def copy(self, source: int, target: int, length: int) -> None:
        """Row `target` becomes row `source` (its first `length` tokens)."""
        for layer in self.slot_layers:
            for states in layer.held:
                states[target, :, :length] = states[source, :, :length]

    def free(self) -> None:
        """Gives the memory back; the next forward allocates again."""
        self.capacity = 0
        for layer in self.slot_layers:
            layer.keys = layer.values = None
            layer.is_initialized = False

    @property
    def nbytes(self) -> int:
        return sum(states.numel() * states.element_size() for layer in self.slot_layers for states in layer.held)

    def _reserve(self, width: int) -> None:
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
        keys[owner.write_index] = key_states[:, :, 0]
        values[owner.write_index] = value_states[:, :, 0]
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
