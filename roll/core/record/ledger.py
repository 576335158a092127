"""Accounts of time: each named actor of the run (a stage, a role, a device) is in exactly one state at any moment.

Invariant: the durations of a name's states sum to the time since it first entered one. Pure: the caller brings the clock, in
seconds (any origin, monotonic)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from roll.core.record.trace import Span, Trace

BUSY = "busy"
"""State of an actor at work; all others are kinds of waiting."""
STAGE = "stage."
"""Prefix of the names of stages."""


class LaneState(StrEnum):
    """The states of a lane of a stage, as the ledger knows them."""

    IDLE = "idle"
    WAITING_INPUT = "waiting for input"
    WAITING_DEVICE = "waiting for a device"
    PROCESSING = BUSY
    WAITING_OUTPUT = "waiting for output"
    DONE = "done"
    ERROR = "error"


class Current(NamedTuple):
    state: str
    since: float
    """Time at which the state was entered."""
    reason: str


@dataclass(slots=True)
class _Account:
    current: Current
    closed: dict[str, float] = field(default_factory=dict)
    """Seconds of each state, over its finished visits."""


class Ledger:
    def __init__(self, start: float, trace: Trace | None = None) -> None:
        """`start`: no event may be older. `trace`: shows each state that is over."""
        self.start = start
        self._trace = trace
        self._accounts: dict[str, _Account] = {}

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
        if self._trace is not None:
            self._trace.add(_span(name, old, now))
        account.current = Current(state, now, reason)

    def names(self) -> list[str]:
        """Returns the names in the order of their first appearance."""
        return list(self._accounts)

    def current(self, name: str) -> Current:
        """Returns `(state, since, reason)`. Raises `KeyError` for a name that never entered a state."""
        return self._accounts[name].current

    def durations(self, name: str, now: float) -> dict[str, float]:
        """Returns the seconds in each state, the open one counted up to `now`. They sum to `now` minus the first `enter`."""
        account = self._accounts[name]
        state, since, _ = account.current
        if now < since:
            raise ValueError(f"{name} entered {state} at {since}, after {now}")
        totals = dict(account.closed)
        totals[state] = totals.get(state, 0.0) + (now - since)
        return totals

    def share(self, name: str, now: float) -> dict[str, float]:
        """Returns fractions of the time since the first `enter`; they sum to 1 (all 0 when no time has passed)."""
        seconds = self.durations(name, now)
        total = sum(seconds.values())
        return {state: value / total if total else 0.0 for state, value in seconds.items()}

    def open_spans(self, now: float) -> list[Span]:
        """Returns the states that last, up to `now`."""
        return [_span(name, account.current, max(now, account.current.since)) for name, account in self._accounts.items()]


def _span(name: str, current: Current, end: float) -> Span:
    return Span(name, current.state, current.since, end, {"reason": current.reason} if current.reason else {})


class StepSpeed:
    def __init__(self, ledger: Ledger, now: float) -> None:
        self._ledger = ledger
        self._before = now
        self._busy: dict[str, float] = {}

    def step(self, response_tokens: int, now: float) -> dict[str, float]:
        """`throughput/response_tokens_per_s` since the step before, for each stage `time/<stage>_s`, the seconds of that time in
        which it worked, with one lane or many, and for each role `idle_share/<role>`, the share of it in which it did not work.
        Stages work side by side, so they do not add up to the step."""
        seconds, self._before = now - self._before, now
        metrics = {"throughput/response_tokens_per_s": response_tokens / seconds} if seconds > 0 else {}
        for name in self._ledger.names():
            total = self._ledger.durations(name, now).get(BUSY, 0.0)
            busy, self._busy[name] = total - self._busy.get(name, 0.0), total
            if name.startswith(STAGE):
                metrics[f"time/{name.removeprefix(STAGE)}_s"] = busy
            elif seconds > 0:
                metrics[f"idle_share/{name}"] = max(0.0, 1 - busy / seconds)
        return metrics
