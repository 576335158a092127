"""Sentences made from metrics: each row of a table says when it holds, how long it has to, and what is said then. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

Metrics = Mapping[str, Any]


class Row(NamedTuple):
    metric: str
    """Its name, or how the names of several begin: `actor/engine_mismatch/*`."""
    holds: Callable[[str, float, Metrics], bool]
    """Given the metric's name and value, and those of all."""
    sentence: Callable[[str, float, Metrics], str]
    fix: str = ""
    patience: int = 1
    """Values in a row of which it has to hold."""
    said: Literal["once", "again", "always"] = "once"
    """In a run; after each time that it did not hold; with each value."""
    kept: bool = False
    """It stands in summary.json."""

    def names(self, metrics: Metrics) -> Iterator[str]:
        if self.metric.endswith("*"):
            yield from (name for name in metrics if name.startswith(self.metric[:-1]))
        elif self.metric in metrics:
            yield self.metric


class Said(NamedTuple):
    row: int
    """Its place in the table."""
    value: float
    text: str


class Table:
    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = list(rows)
        self.seen: set[int] = set()
        """The rows whose metrics there were."""
        self._in_a_row: dict[tuple[int, str], int] = {}
        self._over: set[int] = set()
        """What was said once."""

    def judge(self, metrics: Metrics) -> Iterator[Said]:
        """Yields what is to be said with these metrics. One that is not among them keeps its count."""
        for place, row in enumerate(self.rows):
            for name in row.names(metrics):
                self.seen.add(place)
                value = float(metrics[name])
                count = self._in_a_row.get((place, name), 0) + 1 if row.holds(name, value, metrics) else 0
                self._in_a_row[place, name] = count
                reached = count == row.patience or (row.said == "always" and count > row.patience)
                if reached and place not in self._over:
                    self._over |= {place} if row.said == "once" else set()
                    yield Said(place, value, row.sentence(name, value, metrics) + (f"; fix: {row.fix}" if row.fix else ""))
