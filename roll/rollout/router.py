"""Which engine serves a request: the least loaded one, or the one that holds the prompt already. Pure.

Load is counted in samples. An engine takes up to `capacity` of them, or as many as its KV cache turns out to hold; what does
not fit waits in one queue, first by priority, then in the order of arrival, so nothing overtakes within a priority and a large
request is never starved by small ones.

How many samples fit the KV cache is found out as TCP finds out a link's capacity (`Concurrency`). An engine that runs out of KV
cache takes it from requests that run and computes it again later, so more requests are then fewer tokens. Additive increase,
multiplicative decrease (Chiu and Jain, 1989): drivers of one engine come to equal shares.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass

from roll.distributed.waiting_line import WaitingLine

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


REMEMBERED_PROMPTS = 4096
"""Prompts whose engine is remembered for affinity; older ones are forgotten, which costs a prefill and nothing else."""


@dataclass(eq=False, slots=True)
class Route:
    """One request for `samples` slots; `engine` is set when it is granted."""

    samples: int
    affinity: str
    engine: int | None = None
    number: int = 0
    """Number of this request among those that the engine was given (`Concurrency.begin`)."""


class Router:
    def __init__(self, engines: int, capacity: int) -> None:
        self.load: list[int] = [0] * engines
        self._by_load = [(0, engine) for engine in range(engines)]
        """A heap with the present load of every open engine, and former ones, which are left out when they come to its top."""
        self._concurrency = [Concurrency(capacity) for _ in range(engines)]
        self._closed: set[int] = set()
        self._home: OrderedDict[str, int] = OrderedDict()
        self._queue: WaitingLine[Route, Route] = WaitingLine()

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def limits(self) -> list[int]:
        """Samples that each engine may be given together, now."""
        return [concurrency.limit for concurrency in self._concurrency]

    def request(self, samples: int, affinity: str, priority: int = 1) -> tuple[Route, list[Route]]:
        """The new route, and all routes that are granted now (it may be among them)."""
        route = Route(samples, affinity)
        self._queue.add(route, priority, route)
        return route, self._grant()

    def release(self, route: Route, preempted: bool = False) -> list[Route]:
        """Gives the slots back (or leaves the queue); returns the routes that are granted now. `preempted`: the engine ran out
        of KV cache while it served the request."""
        if route.engine is None:
            self._queue.remove(route)
        else:
            self._concurrency[route.engine].end(route.number, route.samples, self.load[route.engine], preempted)
            self._weigh(route.engine, -route.samples)
            route.engine = None
        return self._grant()

    def close(self, engine: int) -> None:
        """The engine gets no new requests. The requests that it has stay with it until they are released."""
        self._closed.add(engine)

    def open(self, engine: int) -> list[Route]:
        """The engine is served again; returns the routes that are granted now."""
        self._closed.discard(engine)
        self._weigh(engine, 0)
        return self._grant()

    def _grant(self) -> list[Route]:
        granted = []
        while (route := self._queue.first()) is not None:
            engine = self._pick(route)
            if engine is None:
                break
            self._queue.remove(route)
            route.engine = engine
            route.number = self._concurrency[engine].begin()
            self._weigh(engine, route.samples)
            self._home[route.affinity] = engine
            self._home.move_to_end(route.affinity)
            if len(self._home) > REMEMBERED_PROMPTS:
                self._home.popitem(last=False)
            granted.append(route)
        return granted

    def _pick(self, route: Route) -> int | None:
        home = self._home.get(route.affinity)
        if home is not None and self._fits(home, route):
            return home
        engine = self._least_loaded()
        return engine if engine is not None and self._fits(engine, route) else None

    def _weigh(self, engine: int, samples: int) -> None:
        """Adds to the engine's load."""
        self.load[engine] += samples
        heapq.heappush(self._by_load, (self.load[engine], engine))
        if len(self._by_load) > 4 * len(self.load):  # former loads that never came to the top
            self._by_load = [(load, each) for each, load in enumerate(self.load)]
            heapq.heapify(self._by_load)

    def _least_loaded(self) -> int | None:
        """Of the open engines; of equals the first. The time is logarithmic in engines, of which there may be thousands."""
        while self._by_load:
            load, engine = self._by_load[0]
            if engine not in self._closed and load == self.load[engine]:
                return engine
            heapq.heappop(self._by_load)
        return None

    def _fits(self, engine: int, route: Route) -> bool:
        # A request larger than an engine goes to an empty engine, whose own queue takes the rest.
        return engine not in self._closed and (
            self.load[engine] == 0 or self.load[engine] + route.samples <= self._concurrency[engine].limit
        )
