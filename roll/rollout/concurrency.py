"""How many samples an engine is given at once: as many as its KV cache holds, found out as TCP finds out a link's capacity.

An engine that runs out of KV cache takes it from requests that run and computes it again later, so more requests are then fewer
tokens. Additive increase, multiplicative decrease (Chiu and Jain, 1989): drivers of one engine come to equal shares. Pure.
"""

from __future__ import annotations

CUT = 0.75
"""What is left of the load at which the cache ran out."""


class Concurrency:
    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(most)
        self._begun = 0
        self._counts_from = 0

    @property
    def limit(self) -> int:
        """Samples, at least 1."""
        return int(self._limit)

    def begin(self) -> int:
        """A request is given to the engine; returns its number."""
        self._begun += 1
        return self._begun

    def end(self, number: int, samples: int, load: int, preempted: bool) -> None:
        """The request with this number has ended. `load`: samples on the engine until now; `preempted`: it ran out of KV cache
        meanwhile.

        Requests that were running when the limit was cut say nothing new: a shortage costs one cut."""
        if number <= self._counts_from:
            return
        if preempted:
            self._limit = max(1.0, CUT * min(load, self._limit))
            self._counts_from = self._begun
        elif load >= self.limit:
            self._limit = min(float(self._most), self._limit + samples / self._limit)
