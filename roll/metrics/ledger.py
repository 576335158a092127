"""Where every second went: each named actor of the run (a stage, a role, a device) is in exactly one state at any moment.

Invariant: the durations of a name's states sum to the time since it first entered one. Pure: the caller brings the clock, in
seconds (any origin, monotonic)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

HISTORY = 50_000
"""Closed segments kept for the trace; older ones are forgotten, the durations are not."""


class Segment(NamedTuple):
    """`name` was in `state` during `[begin, end)`."""

    name: str
    state: str
    begin: float
    end: float
    reason: str


class Current(NamedTuple):
    state: str
    since: float
    """When the state was entered."""
    reason: str


@dataclass(slots=True)
class _Account:
    current: Current
    closed: dict[str, float] = field(default_factory=dict)
    """Seconds of each state, over its finished visits."""


class Ledger:
    def __init__(self, start: float, history: int = HISTORY) -> None:
        """`start`: the zero of the exported trace. No event may be older."""
        self.start = start
        self.forgotten = 0
        """Segments that no longer fit into the history."""
        self._accounts: dict[str, _Account] = {}
        self._history: deque[Segment] = deque(maxlen=history)

    def enter(self, name: str, state: str, now: float, reason: str = "") -> None:
        """`name` is in `state` from `now` on. Entering the state it is in only renews the reason ("3 of 64 groups").

        Raises `ValueError` if `now` lies before the name's last change of state."""
        account = self._accounts.get(name)
        earliest = account.current.since if account else self.start
        if now < earliest:
            raise ValueError(f"{name} cannot enter {state} at {now}: its books are closed up to {earliest}")
        if account is None:
            self._accounts[name] = _Account(Current(state, now, reason))
            return
        old = account.current
        if old.state == state:
            account.current = Current(state, old.since, reason)
            return
        account.closed[old.state] = account.closed.get(old.state, 0.0) + (now - old.since)
        self.forgotten += len(self._history) == self._history.maxlen
        self._history.append(Segment(name, old.state, old.since, now, old.reason))
        account.current = Current(state, now, reason)

    def names(self) -> list[str]:
        """The names in the order of their first appearance."""
        return list(self._accounts)

    def current(self, name: str) -> Current:
        """`(state, since, reason)`. Raises `KeyError` for a name that never entered a state."""
        return self._accounts[name].current

    def durations(self, name: str, now: float) -> dict[str, float]:
        """Seconds in each state, the open one counted up to `now`. They sum to `now` minus the first `enter`."""
        account = self._accounts[name]
        state, since, _ = account.current
        if now < since:
            raise ValueError(f"{name} entered {state} at {since}, after {now}")
        totals = dict(account.closed)
        totals[state] = totals.get(state, 0.0) + (now - since)
        return totals

    def share(self, name: str, now: float) -> dict[str, float]:
        """Fractions of the time since the first `enter`; they sum to 1 (all 0 when no time has passed)."""
        seconds = self.durations(name, now)
        total = sum(seconds.values())
        return {state: value / total if total else 0.0 for state, value in seconds.items()}

    def segments(self) -> list[Segment]:
        """The last closed segments, in the order they were closed."""
        return list(self._history)

    def chrome_trace(self, now: float | None = None) -> dict[str, Any]:
        """JSON-able, for chrome://tracing and ui.perfetto.dev: one row a name. Open segments are drawn up to `now`, if given.

        Times are microseconds since `start` (Trace Event Format, "X" = complete event, "M" = metadata)."""
        segments = self.segments()
        if now is not None:
            open_ones = ((name, account.current) for name, account in self._accounts.items())
            segments += [Segment(name, c.state, c.since, max(now, c.since), c.reason) for name, c in open_ones]
        row = {name: index for index, name in enumerate(self._accounts)}
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": index, "args": {"name": name}} for name, index in row.items()
        ]
        for s in segments:
            ts, dur = (s.begin - self.start) * 1e6, (s.end - s.begin) * 1e6
            args = {"reason": s.reason} if s.reason else {}
            events.append({"ph": "X", "name": s.state, "pid": 0, "tid": row[s.name], "ts": ts, "dur": dur, "args": args})
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"forgotten_segments": self.forgotten}}
