"""Contents of free slots: rows that have ended, which later requests may begin with, the next turn of an episode above all.

Pure bookkeeping; the owner of a slot's states moves them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from roll.core.data.microbatches import common_prefix

LEAST = 16
"""Tokens in common that are worth a copy."""

Ids = npt.NDArray[np.int32]


class Beginning(NamedTuple):
    """A free slot, and how many of its tokens a context begins with."""

    slot: int
    tokens: int


class _Held(NamedTuple):
    age: int
    ids: Ids


class KeptRows:
    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._ages = count()
        self._held: dict[int, _Held] = {}
        self._by_beginning: dict[bytes, set[int]] = {}

    def clear(self) -> None:
        self._held.clear()
        self._by_beginning.clear()

    @property
    def slots(self) -> Collection[int]:
        return self._held.keys()

    def drop_oldest(self) -> bool:
        """Returns True if there was one."""
        slot = min(self._held, key=lambda slot: self._held[slot].age, default=None)
        return slot is not None and self._drop(slot) is not None

    def keep(self, slot: int, tokens: Sequence[int]) -> None:
        """The free slot holds the states of these tokens."""
        if len(tokens) >= LEAST:
            self._put(slot, _Held(next(self._ages), np.array(tokens, dtype=np.int32)))

    def beginning(self, tokens: Sequence[int]) -> Beginning | None:
        """The slot that has most of the tokens' beginning, the last one excepted: its logits are wanted."""
        wanted = np.array(tokens[:-1], dtype=np.int32)
        slots = self._by_beginning.get(_key(wanted), ())
        found = (Beginning(slot, common_prefix(wanted, self._held[slot].ids)) for slot in slots)
        return max(found, key=lambda each: each.tokens, default=None) if len(wanted) >= LEAST else None

    def give_up(self, slots: range, continued: Sequence[Beginning]) -> Iterator[tuple[int, int, int]]:
        """Rows take these slots, the first that are free, and continue some. What a slot of these holds and nobody continues to
        its end moves to a slot behind them that holds nothing, or something older: (from, to, number of tokens), one after the
        other."""
        over = {slot for slot, tokens in continued if tokens == len(self._held[slot].ids)}
        for slot in over:
            self._drop(slot)
        for slot in slots:
            if (held := self._drop(slot)) is None:
                continue
            ages = {other: self._held[other].age if other in self._held else -1 for other in range(slots.stop, self._slots)}
            target = min(ages, key=ages.__getitem__, default=None)
            if target is not None and ages[target] < held.age:
                self._drop(target)
                self._put(target, held)
                yield slot, target, len(held.ids)

    def _put(self, slot: int, held: _Held) -> None:
        self._held[slot] = held
        self._by_beginning.setdefault(_key(held.ids), set()).add(slot)

    def _drop(self, slot: int) -> _Held | None:
        held = self._held.pop(slot, None)
        if held is not None:
            slots = self._by_beginning[_key(held.ids)]
            slots.remove(slot)
            if not slots:
                del self._by_beginning[_key(held.ids)]
        return held


def _key(ids: Ids) -> bytes:
    return ids[:LEAST].tobytes()
