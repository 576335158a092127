"""The tokens that top_p and top_k left to choose from, for each token that was sampled.

A token that was drawn from a kept set S has the probability p / p(S). Its behaviour log-prob is then that of the cut
distribution, `log_softmax` over S, and every other log-prob of it (of the policy that is trained, of the step's first weights, of
the reference) is taken over the same S. What is sampled and what is trained are then one policy: on-policy the ratio is 1, and
the gradient is that of the expected reward under this policy, in which S is a constant (it changes with the weights at isolated
points only).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from roll.data.transfer import to_device

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, slots=True, eq=False)
class KeptTokens:
    """Of one response."""

    counts: Ints
    """[n] size of each response token's set; 0: the whole vocabulary."""
    ids: Ints
    """[sum of counts] the sets, one after the other."""

    @classmethod
    def of(cls, sets: Sequence[Ints]) -> KeptTokens:
        counts = np.array([len(ids) for ids in sets], dtype=np.int32)
        return cls(counts, np.concatenate([np.zeros(0, np.int32), *sets], dtype=np.int32))

    @classmethod
    def whole(cls, tokens: int) -> KeptTokens:
        """Of tokens that were not sampled, or not from a set."""
        return cls(np.zeros(tokens, np.int32), np.zeros(0, np.int32))

    def __add__(self, other: KeptTokens) -> KeptTokens:
        return KeptTokens(np.concatenate([self.counts, other.counts]), np.concatenate([self.ids, other.ids]))

    @property
    def sizes(self) -> list[int]:
        """Of the sets; of tokens that were sampled from one."""
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
    """Of the tokens of a batch."""

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
        """Of tokens that were not sampled from a set."""
        return cls(torch.zeros(tokens, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))

    @classmethod
    def joined(cls, parts: Sequence[KeptSets]) -> KeptSets:
        return cls(torch.cat([part.counts for part in parts]), torch.cat([part.ids for part in parts]))

    def __getitem__(self, index: Tensor) -> KeptSets:
        """`index`: numbers of tokens, or a mask [N]."""
        counts = self.counts[index]
        first = (self.counts.cumsum(0) - self.counts)[index] - (counts.cumsum(0) - counts)
        places = torch.arange(int(counts.sum()), device=counts.device) + first.repeat_interleave(counts)
        return KeptSets(counts, self.ids[places])

    def to(self, device: torch.device) -> KeptSets:
        counts, ids = to_device((self.counts, self.ids), device)
        assert counts is not None and ids is not None
        return KeptSets(counts, ids)

    def cut(self, start: int, stop: int) -> Tensor:
        """[N, stop - start] bool: the entries of the vocabulary from `start` to `stop` that are in no set, where there is one."""
        cut = (self.counts > 0)[:, None].expand(-1, stop - start).clone()
        here = (self.ids >= start) & (self.ids < stop)
        tokens = torch.arange(len(self.counts), device=self.counts.device).repeat_interleave(self.counts)
        cut[tokens[here], self.ids[here] - start] = False
        return cut
