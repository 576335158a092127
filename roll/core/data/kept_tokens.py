"""The token sets that top_p and top_k kept, one for each sampled token.

A token drawn from a kept set S has the probability p / p(S). Its behaviour log-prob is therefore that of the truncated
distribution, `log_softmax` over S, and its other log-probs (under the trained policy, the step's first weights and the reference)
are taken over the same S. Sampled and trained policy are then the same: on-policy the ratio is 1, and the gradient is that of the
expected reward under this policy, with S a constant (it changes with the weights at isolated points only).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from roll.core.data.transfer import Move

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, slots=True, eq=False)
class KeptTokens:
    """The kept sets of one response."""

    counts: Ints
    """[n] size of each response token's set; 0: the whole vocabulary."""
    ids: Ints
    """[sum of counts] the sets, concatenated."""

    @classmethod
    def of(cls, sets: Sequence[Ints]) -> KeptTokens:
        counts = np.array([len(ids) for ids in sets], dtype=np.int32)
        return cls(counts, np.concatenate([np.zeros(0, np.int32), *sets], dtype=np.int32))

    @classmethod
    def whole(cls, tokens: int) -> KeptTokens:
        """Returns `tokens` entries without a set, for tokens that were not sampled or were sampled from the whole vocabulary."""
        return cls(np.zeros(tokens, np.int32), np.zeros(0, np.int32))

    def __add__(self, other: KeptTokens) -> KeptTokens:
        return KeptTokens(np.concatenate([self.counts, other.counts]), np.concatenate([self.ids, other.ids]))

    @property
    def sizes(self) -> list[int]:
        """Sizes of the sets; tokens without a set are left out."""
        return [count for count in self.counts.tolist() if count]

    def __len__(self) -> int:
        return len(self.counts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeptTokens) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]  # arrays can change

    def to_json(self) -> list[list[int]]:
        return [self.counts.tolist(), self.ids.tolist()]

    @classmethod
    def from_json(cls, row: Sequence[Sequence[int]]) -> KeptTokens:
        counts, ids = (np.array(values, dtype=np.int32) for values in row)
        return cls(counts, ids)


@dataclass(frozen=True, slots=True)
class KeptSets:
    """The kept sets of a batch."""

    counts: Tensor
    """[N] int64; 0: the whole vocabulary."""
    ids: Tensor
    """[sum of counts] int64."""

    @classmethod
    def of(cls, parts: Sequence[KeptTokens]) -> KeptSets:
        counts, ids = (np.concatenate([getattr(part, name) for part in parts]) for name in ("counts", "ids"))
        return cls(torch.from_numpy(counts).long(), torch.from_numpy(ids).long())

    @classmethod
    def whole(cls, tokens: int) -> KeptSets:
        """Returns `tokens` entries without a set."""
        return cls(torch.zeros(tokens, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))

    @classmethod
    def joined(cls, parts: Sequence[KeptSets]) -> KeptSets:
        return cls(torch.cat([part.counts for part in parts]), torch.cat([part.ids for part in parts]))

    def __getitem__(self, index: Tensor) -> KeptSets:
        """`index`: token indices, or a mask [N]."""
        counts = self.counts[index]
        first = (self.counts.cumsum(0) - self.counts)[index] - (counts.cumsum(0) - counts)
        places = torch.arange(int(counts.sum()), device=counts.device) + first.repeat_interleave(counts)
        return KeptSets(counts, self.ids[places])

    def each(self, move: Move) -> KeptSets:
        return KeptSets(move(self.counts), move(self.ids))

    def cut(self, start: int, stop: int) -> Tensor:
        """[N, stop - start] bool: True for vocabulary entries in `[start, stop)` outside a token's set; False without a set."""
        cut = (self.counts > 0)[:, None].expand(-1, stop - start).clone()
        here = (self.ids >= start) & (self.ids < stop)
        tokens = torch.arange(len(self.counts), device=self.counts.device).repeat_interleave(self.counts)
        cut[tokens[here], self.ids[here] - start] = False
        return cut
