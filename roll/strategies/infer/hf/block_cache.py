"""A KV cache in blocks of one pool, for accelerators: memory follows the tokens that there are, not slots times the longest.

Each layer holds keys and values of shape [blocks, tokens of a block, kv_heads, head_dim]. A token step attends over the pool with
a kernel that finds each row's blocks in a table; whatever else reads the cache gathers its rows. The pool doubles until the most
blocks that there may be, and `free` gives it back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from roll.strategies.infer.hf.blocks import Blocks
from roll.strategies.infer.hf.kept_rows import Beginning
from roll.strategies.infer.hf.slot_cache import Moves, SlotCache, SlotLayer, Span


class BlockRows(NamedTuple):
    """Rows of a token step, by their blocks."""

    table: Tensor
    """[rows, blocks of the longest] int32."""
    lengths: Tensor
    """[rows] int32, tokens of each, the new one included."""
    borders: Tensor
    """[rows + 1] int32: 0, 1, 2, ..."""


def block_attention(query: Tensor, keys: Tensor, values: Tensor, rows: BlockRows, scale: float | None) -> Tensor:
    """Output [n, 1, heads, d] for query [n, heads, 1, d] over the pool. A row's keys are not split among thread blocks: its
    output is then the same in any batch."""
    longest = rows.table.shape[1] * keys.shape[1]
    out: Any = varlen_attn(
        query[:, :, 0],
        keys,
        values,
        rows.borders,
        rows.borders * longest,  # FlashAttention 2 wants it, and reads `seqused_k`
        1,
        longest,
        scale=scale,
        enable_gqa=True,
        seqused_k=rows.lengths,
        block_table=rows.table,
        num_splits=1,
    )
    return out[:, None]  # type: ignore[no-any-return]


class BlockCache(SlotCache):
    """`block`: its tokens. `tokens`: the most that the cache may hold, though always a row of full length."""

    def __init__(
        self, slots: int, max_length: int, num_layers: int, device: torch.device, block: int, tokens: int | None
    ) -> None:
        longest = -(-max_length // block)
        most = slots * longest if tokens is None else max(longest, min(tokens // block, slots * longest))
        self._sizes = slots, block, most
        self.blocks = Blocks(*self._sizes)
        # One row more than slots, for padding: its blocks are block 0.
        self._table = torch.zeros(slots + 1, longest, dtype=torch.int32, device=device)
        self._host = self._table.to("cpu", copy=True)
        self.pool = 0
        """Blocks that there is memory for."""
        self.rows: BlockRows | None = None
        """Rows of the forward under way, if it holds one token of each."""
        self._read = self._table[:0, 0]
        super().__init__(slots, max_length, num_layers, BlockLayer)

    def reads(self, width: int) -> int:
        return 1  # what a mask is about: the kernel knows the lengths

    def reserve(self, width: int) -> None:
        if width > self.max_length:
            raise ValueError(f"{width} tokens do not fit into max_length={self.max_length}")

    def begin_prefill(self, start: int, count: int, width: int) -> None:
        self.reserve(width)
        rows = torch.arange(start, start + count, device=self._table.device)
        self.begin_rows(rows, torch.arange(width, device=rows.device).expand(count, width), width, start)
        self.prefilling, self.rows = True, None

    def begin_rows(self, rows: Tensor, positions: Tensor, width: int, start: int = 0) -> None:
        self.start, self.count, self.width, self.prefilling = start, len(positions), width, False
        self._read, size = rows, self.blocks.size
        table = self._table[rows]
        self.write_index = (table.gather(1, positions // size).long(), positions % size)
        borders = torch.arange(len(rows) + 1, dtype=torch.int32, device=rows.device)
        self.rows = BlockRows(table, positions[:, 0].int() + 1, borders) if positions.shape[1] == 1 else None

    @property
    def for_attention(self) -> dict[str, Any]:
        return {} if self.rows is None else {"block_rows": self.rows}

    def room(self, rows: int) -> int:
        return self.blocks.most - self.blocks.used_by(range(rows))

    def needs(self, tokens: int) -> int:
        return self.blocks.count(tokens)

    def own(self, spans: Sequence[Span]) -> bool:
        copies, found = [], True
        for span in spans:
            found, more = self.blocks.own(*span)
            copies += more
            if not found:
                break
        self._grow()
        if copies:
            sources, targets = torch.tensor(copies, device=self._table.device).T
            for each in self._held():
                each[targets] = each[sources]
        self._tell()
        return found

    def keep_only(self, rows: int, kept: Collection[int]) -> None:
        for slot in range(rows, self.slots):
            if self.blocks.tables[slot] and slot not in kept:
                self.blocks.put(slot, ())

    def take(self, first: int, begun: Sequence[Beginning | None], moves: Moves) -> None:
        held = [[] if each is None else self.blocks.hold(*each) for each in begun]
        for source, target, tokens in moves:
            self.blocks.put(target, self.blocks.hold(source, tokens))
        for slot, each in enumerate(held, first):
            self.blocks.put(slot, each)

    def swap(self, first: int, second: int, lengths: tuple[int, int]) -> None:
        self.blocks.swap(first, second)

    def copy(self, source: int, target: int, length: int) -> None:
        self.blocks.put(target, self.blocks.hold(source, length))

    def use(self, rows: int) -> float:
        return self.blocks.used_by(range(rows)) / self.blocks.most

    def free(self) -> None:
        super().free()
        self.blocks, self.pool = Blocks(*self._sizes), 0

    def of_slot(self, states: Tensor, slot: int, start: int, stop: int) -> Tensor:
        return states[self.blocks.tables[slot]].flatten(0, 1)[start:stop]

    def gathered(self, states: Tensor) -> Tensor:
        """[rows, tokens, ...] of the rows of the forward under way."""
        table = self._table[self._read, : self.blocks.count(self.width)]
        return states[table].flatten(1, 2)[:, : self.width]

    def _stored(self, held: Tensor | None, values: Tensor, shape: torch.Size) -> Tensor:
        if held is None:
            held = values.new_zeros(self.pool, self.blocks.size, *shape)
        held[self.write_index] = values.view(held[self.write_index].shape)
        return held

    def _held(self) -> list[Tensor]:
        extras = [each for each in (self.routes, self.reach) if each is not None]
        return [*(states for layer in self.slot_layers for states in layer.held), *extras]

    def _grow(self) -> None:
        """A layer at a time: for a moment one layer is there twice."""
        if self.blocks.made <= self.pool:
            return
        self.pool = min(max(self.blocks.made, 2 * self.pool, self.slots + 1), self.blocks.most + 1)
        self.capacity = self.pool * self.blocks.size
        for layer in self.slot_layers:
            layer.grow()
        self.routes, self.reach = (each if each is None else self.grown(each) for each in (self.routes, self.reach))

    def grown(self, states: Tensor) -> Tensor:
        larger = states.new_zeros(self.pool, *states.shape[1:])
        larger[: len(states)] = states
        return larger

    def _tell(self) -> None:
        """The device's table becomes that of the blocks."""
        if not (changed := self.blocks.changed):
            return
        for slot in changed:
            table = self.blocks.tables[slot]
            self._host[slot] = 0
            self._host[slot, : len(table)] = torch.tensor(table, dtype=torch.int32)
        self._table.copy_(self._host)
        changed.clear()


class BlockLayer(SlotLayer):
    owner: BlockCache

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Stores the new states [count, kv_heads, tokens, head_dim]; returns those that attention reads, or the pool."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        owner, (keys, values) = self.owner, self.held
        keys[owner.write_index] = key_states.transpose(1, 2)
        values[owner.write_index] = value_states.transpose(1, 2)
        if owner.prefilling:
            return key_states, value_states
        if owner.rows is not None:
            return keys, values
        return owner.gathered(keys).transpose(1, 2), owner.gathered(values).transpose(1, 2)

    def _grown(self, states: Tensor) -> Tensor:
        return self.owner.grown(states)

    def _zeros(self, like: Tensor) -> Tensor:
        return like.new_zeros(self.owner.pool, self.owner.blocks.size, like.shape[1], like.shape[3])
