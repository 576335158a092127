"""Sentences made from metrics: each row of a table says when it holds, how long it has to, and its sentence. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from roll.core.record.callbacks import MetricsRow


class Row(NamedTuple):
    metric: str | Sequence[str]
    """Its name, or those of several, which count by themselves; `x/*`: of all that begin so."""
    condition: Callable[[float, MetricsRow], bool]
    """Given the metric's value, and all metrics."""
    sentence: str | Callable[[str, float, MetricsRow], str]
    """Text with `{name}` and `{value}`, or given these and all metrics."""
    fix: str = ""
    patience: int = 1
    """Values in a row of which the condition has to hold."""
    said: Literal["once", "again", "always"] = "once"
    """In a run; after each time that it did not hold; with each value."""
    kept: bool = False
    """In summary.json, too."""

    def names(self, metrics: MetricsRow) -> list[str]:
        if isinstance(self.metric, str) and self.metric.endswith("*"):
            return [name for name in metrics if name.startswith(self.metric[:-1])]
        return [name for name in ([self.metric] if isinstance(self.metric, str) else self.metric) if name in metrics]

    def text(self, name: str, value: float, metrics: MetricsRow) -> str:
        say = self.sentence
        text = say.format(name=name, value=value) if isinstance(say, str) else say(name, value, metrics)
        return f"{text}; fix: {self.fix}" if self.fix else text


class Table:
    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.seen: set[int] = set()
        """Places of rows whose metrics there were."""
        self._in_a_row: dict[tuple[int, str], int] = {}
        self._over: set[int] = set()

    def judge(self, metrics: MetricsRow) -> Iterator[tuple[int, float, str]]:
        """Yields place, value and sentence of each due row. A metric that is not there keeps its count."""
        for place, row in enumerate(self.rows):
            for name in row.names(metrics):
                self.seen.add(place)
                value = float(metrics[name])
                count = self._in_a_row.get((place, name), 0) + 1 if row.condition(value, metrics) else 0
                self._in_a_row[place, name] = count
                if (count == row.patience or (row.said == "always" and count > row.patience)) and place not in self._over:
                    self._over |= {place} if row.said == "once" else set()
                    yield place, value, row.text(name, value, metrics)
