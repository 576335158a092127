"""Which engine serves a request: the least loaded one, or the one that holds the prompt already. Pure.

Load is counted in samples. An engine takes up to `capacity` of them, or as many as its KV cache turns out to hold; what does
not fit waits in one queue, first by priority, then in the order of arrival, so nothing overtakes within a priority and a large
request is never starved by small ones.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field

from roll.rollout.concurrency import Concurrency

REMEMBERED_PROMPTS = 4096
"""Prompts whose engine is remembered for affinity; older ones are forgotten, which costs a prefill and nothing else."""


@dataclass(slots=True)
class Route:
    """One request for `samples` slots; `engine` is set when it is granted."""

    samples: int
    affinity: str
    engine: int | None = None
    number: int = 0
    """Number of this request among those that the engine was given (`Concurrency.begin`)."""


@dataclass(order=True, slots=True)
class _Waiting:
    priority: int
    arrival: int
    route: Route = field(compare=False)


class Router:
    def __init__(self, engines: int, capacity: int) -> None:
        self.load: list[int] = [0] * engines
        self._concurrency = [Concurrency(capacity) for _ in range(engines)]
        self._closed: set[int] = set()
        self._home: OrderedDict[str, int] = OrderedDict()
        self._queue: list[_Waiting] = []
        self._arrivals = 0

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def limits(self) -> list[int]:
        """Samples that each engine is given at once, now."""
        return [concurrency.limit for concurrency in self._concurrency]

    def request(self, samples: int, affinity: str, priority: int = 1) -> tuple[Route, list[Route]]:
        """The new route, and all routes that are granted now (it may be among them)."""
        route = Route(samples, affinity)
        self._arrivals += 1
        heapq.heappush(self._queue, _Waiting(priority, self._arrivals, route))
        return route, self._grant()

    def release(self, route: Route, preempted: bool = False) -> list[Route]:
        """Gives the slots back (or leaves the queue); returns the routes that are granted now. `preempted`: the engine ran out
        of KV cache while it served the request."""
        if route.engine is None:
            self._queue = [waiting for waiting in self._queue if waiting.route is not route]
            heapq.heapify(self._queue)
        else:
            self._concurrency[route.engine].end(route.number, route.samples, self.load[route.engine], preempted)
            self.load[route.engine] -= route.samples
            route.engine = None
        return self._grant()

    def close(self, engine: int) -> None:
        """The engine gets no new requests. The requests that it has stay with it until they are released."""
        self._closed.add(engine)

    def open(self, engine: int) -> list[Route]:
        """The engine is served again; returns the routes that are granted now."""
        self._closed.discard(engine)
        return self._grant()

    def _grant(self) -> list[Route]:
        granted = []
        while self._queue:
            route = self._queue[0].route
            engine = self._pick(route)
            if engine is None:
                break
            heapq.heappop(self._queue)
            route.engine = engine
            route.number = self._concurrency[engine].begin()
            self.load[engine] += route.samples
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
        open_ = [engine for engine in range(len(self.load)) if engine not in self._closed]
        engine = min(open_, key=lambda i: self.load[i], default=None)
        return engine if engine is not None and self._fits(engine, route) else None

    def _fits(self, engine: int, route: Route) -> bool:
        # A request larger than an engine goes to an empty engine, whose own queue takes the rest.
        return engine not in self._closed and (
            self.load[engine] == 0 or self.load[engine] + route.samples <= self._concurrency[engine].limit
        )
