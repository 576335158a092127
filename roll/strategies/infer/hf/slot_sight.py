"""The images of a slot engine's contexts, and the positions of tokens behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from roll.core.data.transfer import to_device
from roll.strategies.infer.hf.slot_cache import SlotCache
from roll.strategies.vision.sight import Sight


class SlotSight:
    """An image takes more tokens than positions, so the cache holds the largest position up to each token: the next token's is
    behind it."""

    def __init__(self, sight: Sight, cache: SlotCache) -> None:
        self._sight, self._cache = sight, cache
        self._axes = 1

    @contextmanager
    def contexts(self, padded: Tensor, lengths: Sequence[int], at: Tensor) -> Iterator[tuple[Tensor, Tensor, dict[str, Tensor]]]:
        """Tokens, positions and further arguments of the forward that holds the tokens `at` [m, tokens] of contexts [m, width];
        it is made while this is open."""
        device, shown, chosen = at.device, self._sight.shown(padded, lengths), at.cpu()
        self._axes = len(shown.positions)
        reach = shown.positions.amax(0).cummax(1).values.gather(1, chosen)
        positions = shown.positions.gather(2, chosen.expand(self._axes, *chosen.shape))
        tokens, positions, reach = to_device([shown.tokens.gather(1, chosen), positions, reach], device)
        self._cache.store_reach(reach)
        images = self._sight.images(shown, lambda values: values.gather(1, chosen))
        moved = None if images is None else images.each(lambda tensor: tensor.to(device))
        with self._sight.looking(moved) as inputs:
            yield tokens, positions if self._axes > 1 else positions[0], inputs

    def next(self, first: int, at: Tensor) -> Tensor:
        """Positions of the tokens `at` [n] of the slots from `first` on, which follow what the cache holds."""
        assert self._cache.reach is not None
        slots = torch.arange(first, first + len(at), device=at.device)
        places = self._cache.reach[slots, at - 1][:, None] + 1
        self._cache.store_reach(places)
        return places.expand(self._axes, *places.shape) if self._axes > 1 else places
