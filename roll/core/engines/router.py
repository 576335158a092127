"""Router: assigns a request to an engine: the least loaded one, or the one that holds the prompt already. Pure.

Load is counted in requests: one takes one place of an engine, until it is released. An engine has `capacity` places, or as many
as its KV cache turns out to hold. Requests that come together go to one engine together; the rest waits in one queue,
first by priority, then in the order of arrival, so nothing overtakes within a priority and many are never starved by few.

How many requests fit the KV cache is found out as TCP finds out a link's capacity (`Concurrency`). An engine that runs out of KV
cache takes it from requests that run and computes it again later, so more requests are then fewer tokens. Additive increase,
multiplicative decrease (Chiu and Jain, 1989): drivers of one engine come to equal shares.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field

from roll.core.distributed.waiting_line import WaitingLine

CUT = 0.75
"""Factor by which the load is reduced when the cache ran out."""


class Concurrency:
    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(most)
        self._begun = 0
        self._counts_from = 0

    @property
    def limit(self) -> int:
        """Requests, at least 1."""
        return int(self._limit)

    def begin(self) -> int:
        """Counts a request given to the engine; returns its number."""
        self._begun += 1
        return self._begun

    def end(self, number: int, load: int, others_wait: bool, preempted: bool) -> None:
        """Counts the end of the request with this number. `load`: requests on the engine until now; `preempted`: it ran out of KV
        cache meanwhile.

        Requests that were running when the limit was cut say nothing new: a shortage costs one cut."""
        if number <= self._counts_from:
            return
        if preempted:
            self._limit = max(1.0, CUT * min(load, self._limit))
            self._counts_from = self._begun
        elif others_wait:
            self._limit = min(float(self._most), self._limit + 1 / self._limit)


REMEMBERED_PROMPTS = 4096
"""Prompts whose engine is remembered for affinity; older ones are forgotten, which costs a prefill and nothing else."""


@dataclass(eq=False, slots=True)
class Route:
    """Destination of a request; `engine` is set when it is granted."""

    together: list[Route] = field(repr=False)
    """The routes that are granted with it, itself included; those that were released before are left out."""
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
        self._queue: WaitingLine[int, list[Route]] = WaitingLine()
        """Routes that are granted together, by the identity of their list."""

    @property
    def queued(self) -> int:
        """Waiting requests; those that came together count once."""
        return len(self._queue)

    @property
    def limits(self) -> list[int]:
        """Requests that each engine may have, now."""
        return [concurrency.limit for concurrency in self._concurrency]

    def request(self, count: int, affinity: str, priority: int = 1) -> tuple[list[Route], list[Route]]:
        """Returns a route for each of `count` requests, which one engine is given together, and all routes that are granted now
        (they may be among them)."""
        together: list[Route] = []
        together += [Route(together, affinity) for _ in range(count)]
        self._queue.add(id(together), priority, together)
        return [*together], self._grant()

    def release(self, route: Route, preempted: bool = False) -> list[Route]:
        """Releases the place (or leaves the queue), once; returns the routes that are granted now. `preempted`: the engine ran
        out of KV cache while it served the request."""
        if route not in route.together:
            return []
        route.together.remove(route)
        if route.engine is not None:
            self._concurrency[route.engine].end(route.number, self.load[route.engine], bool(self._queue), preempted)
            self._weigh(route.engine, -1)
        elif not route.together:
            self._queue.remove(id(route.together))
        return self._grant()

    def close(self, engine: int) -> None:
        """Closes the engine to new requests. The requests that it has stay with it until they are released."""
        self._closed.add(engine)

    def open(self, engine: int) -> list[Route]:
        """Opens the engine again; returns the routes that are granted now."""
        self._closed.discard(engine)
        self._weigh(engine, 0)
        return self._grant()

    def _grant(self) -> list[Route]:
        granted: list[Route] = []
        while (together := self._queue.first()) is not None:
            engine = self._pick(together[0].affinity, len(together))
            if engine is None:
                break
            self._queue.remove(id(together))
            for route in together:
                route.engine, route.number = engine, self._concurrency[engine].begin()
            self._weigh(engine, len(together))
            self._remember(together[0].affinity, engine)
            granted += together
        return granted

    def _remember(self, affinity: str, engine: int) -> None:
        self._home[affinity] = engine
        self._home.move_to_end(affinity)
        if len(self._home) > REMEMBERED_PROMPTS:
            self._home.popitem(last=False)

    def _pick(self, affinity: str, count: int) -> int | None:
        home = self._home.get(affinity)
        if home is not None and self._fits(home, count):
            return home
        engine = self._least_loaded()
        return engine if engine is not None and self._fits(engine, count) else None

    def _weigh(self, engine: int, requests: int) -> None:
        """Adds to the engine's load."""
        self.load[engine] += requests
        heapq.heappush(self._by_load, (self.load[engine], engine))
        if len(self._by_load) > 4 * len(self.load):  # former loads that never came to the top
            self._by_load = [(load, each) for each, load in enumerate(self.load)]
            heapq.heapify(self._by_load)

    def _least_loaded(self) -> int | None:
        """Returns the least loaded open engine; of equals the first. Takes time logarithmic in engines, even of thousands."""
        while self._by_load:
            load, engine = self._by_load[0]
            if engine not in self._closed and load == self.load[engine]:
                return engine
            heapq.heappop(self._by_load)
        return None

    def _fits(self, engine: int, count: int) -> bool:
        # More requests than an engine has places go to an empty engine, whose own queue takes the rest.
        return engine not in self._closed and (
            self.load[engine] == 0 or self.load[engine] + count <= self._concurrency[engine].limit
        )
