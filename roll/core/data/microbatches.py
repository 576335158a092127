"""Groups samples into micro-batches: padded ones of similar length, or a forest of samples with common prefixes, so that a model
computes each common prefix once. Pure planning on lengths and tokens.

Sorted by their tokens, samples with a common prefix are neighbours: the responses to one prompt, the turns of one episode, and
all prompts behind one system message. A run of neighbours is then a forest: each sample adds only the tokens that its predecessor
lacks, and every prefix shared with an earlier sample of the run is shared with the predecessor, too.

Invariant: equal input gives equal plans on every rank and in every process, and every sample occurs exactly once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Forest:
    """The samples of a batch, sorted by their tokens."""

    order: list[int]
    """Index in the batch of each sample."""
    lengths: list[int]
    """Tokens of each sample."""
    shared: list[int]
    """Length of the prefix that each sample shares with its predecessor; 0 for the first sample."""

    @classmethod
    def of(cls, rows: Sequence[np.ndarray]) -> Forest:
        """`rows`: the tokens of each sample."""
        keys = [row.astype(">u8").tobytes() for row in rows]
        order = sorted(range(len(rows)), key=keys.__getitem__)
        shared = [common_prefix(rows[before], rows[after]) for before, after in itertools.pairwise(order)]
        return cls(order, [len(rows[i]) for i in order], [0, *shared][: len(order)])

    @classmethod
    def of_groups(cls, samples: int, size: int, prompt: int, response: int) -> Forest:
        """Plans for samples of full length, `size` per prompt, from the configuration alone, before any exist."""
        each = [0 if place % size == 0 else prompt for place in range(samples)]
        return cls(list(range(samples)), [prompt + response] * samples, each)

    def microbatches(self, budget: int) -> list[list[int]]:
        """Returns the batch indices of each micro-batch, whose forest has at most `budget` tokens. A sample longer than that gets
        its own micro-batch."""
        if budget < 1:
            raise ValueError(f"the budget must be at least 1 token, got {budget}")
        return [self.order[part.start : part.stop] for part in self._cut(budget)]

    def split(self, ranks: int) -> list[list[int]]:
        """Returns the batch indices of each rank, ascending. Minimises the largest forest of a rank over all divisions into runs
        of neighbours, so two ranks compute the same prefix only if one alone would have too much work."""
        if ranks < 1:
            raise ValueError(f"there must be at least 1 rank, got {ranks}")
        low, high = max(self.lengths, default=1), max(1, sum(self.lengths))
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if len(self._cut(middle)) <= ranks else (middle + 1, high)
        parts = [sorted(self.order[part.start : part.stop]) for part in self._cut(low)]
        return parts + [[] for _ in range(ranks - len(parts))]

    def _cut(self, limit: int) -> list[range]:
        """Cuts the order into runs of neighbours, each as long as the token limit allows."""
        runs: list[range] = []
        tokens = 0
        for place, (length, shared) in enumerate(zip(self.lengths, self.shared, strict=True)):
            if runs and tokens + length - shared <= limit:
                tokens += length - shared
                runs[-1] = range(runs[-1].start, place + 1)
            else:
                tokens = length
                runs.append(range(place, place + 1))
        return runs


def common_prefix(one: np.ndarray, other: np.ndarray) -> int:
    shorter = min(len(one), len(other))
    differs = one[:shorter] != other[:shorter]
    return int(differs.argmax()) if differs.any() else shorter


def plan_microbatches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Returns the indices of each micro-batch, such that rows * longest row <= `max_tokens`.

    Neighbours in length go together, so little of a micro-batch is padding; the longest come first, so that a budget beyond
    the memory fails immediately. A sample longer than the budget gets its own micro-batch.

    Args:
        lengths: tokens of each sample.
        max_tokens: tokens of a micro-batch, padding included.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be >= 1, got {max_tokens}")
    plan: list[list[int]] = []
    longest_first = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    for index in longest_first:
        if plan and (len(plan[-1]) + 1) * lengths[plan[-1][0]] <= max_tokens:
            plan[-1].append(index)
        else:
            plan.append([index])
    return plan
