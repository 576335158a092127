"""The blocks of a KV cache, and whose tokens each holds. Pure bookkeeping, no tensors.

A slot's tokens lie in the blocks of its table, in order. Slots that begin alike have the same blocks in their tables; a block is
free once no table has it. A slot writes only into blocks that it alone has: of one that is shared it first gets a copy.
Block 0 is in no table: what nobody will read is written there.
"""

from __future__ import annotations

from collections.abc import Sequence


class Blocks:
    def __init__(self, slots: int, size: int, most: int) -> None:
        """`size`: tokens of a block. `most`: blocks that there may be, besides block 0."""
        self.size, self.most = size, most
        self.tables: list[list[int]] = [[] for _ in range(slots)]
        self.made = 1
        """Blocks that have been in use until now, block 0 included: numbers below it are known to who keeps their memory."""
        self.changed: set[int] = set(range(slots))
        """Slots whose tables are others than when this was last emptied."""
        self._free: list[int] = []
        self._references: list[int] = [1]

    def count(self, tokens: int) -> int:
        """The blocks that so many tokens take."""
        return -(-tokens // self.size)

    @property
    def used(self) -> int:
        """Without block 0."""
        return self.made - 1 - len(self._free)

    def used_by(self, slots: Sequence[int]) -> int:
        """Blocks in these slots' tables, each counted once."""
        return len(set().union(*(self.tables[slot] for slot in slots)))

    def hold(self, slot: int, tokens: int) -> list[int]:
        """The blocks of its first tokens, which stay until `put` gives them to a slot."""
        held = self.tables[slot][: self.count(tokens)]
        for block in held:
            self._references[block] += 1
        return held

    def put(self, slot: int, held: Sequence[int]) -> None:
        """These blocks, held before, become the slot's table in place of what it has."""
        before, self.tables[slot] = self.tables[slot], [*held]
        for block in before:
            self._leave(block)
        if before or held:
            self.changed.add(slot)

    def swap(self, first: int, second: int) -> None:
        self.tables[first], self.tables[second] = self.tables[second], self.tables[first]
        self.changed |= {first, second}

    def own(self, slot: int, start: int, stop: int) -> tuple[bool, list[tuple[int, int]]]:
        """Makes the blocks of the slot's tokens from `start` to `stop` its own; `start` lies in its table or just behind. False
        if there are too few; then those that it got so far are its own. And the copies to be made: (from, to)."""
        table = self.tables[slot]
        copies: list[tuple[int, int]] = []
        for index in range(start // self.size, self.count(stop)):
            shared = index < len(table)
            if shared and self._references[table[index]] == 1:
                continue
            if (block := self._take()) is None:
                return False, copies
            self.changed.add(slot)
            if not shared:
                table.append(block)
                continue
            copies.append((table[index], block))
            self._leave(table[index])
            table[index] = block
        return True, copies

    def _take(self) -> int | None:
        if not self._free and self.made > self.most:
            return None
        if self._free:
            block = self._free.pop()
        else:
            block, self.made = self.made, self.made + 1
            self._references.append(0)
        self._references[block] = 1
        return block

    def _leave(self, block: int) -> None:
        self._references[block] -= 1
        if not self._references[block]:
            self._free.append(block)
