"""Results of a run of several environments, or domains, in each of them, for the table at its end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean
from typing import Any

from roll.core.record.callbacks import MetricsRow, Summary
from roll.core.record.run_progress import RunProgress
from roll.reports.rows import OfRows

STEPS = 5
"""The first, and the last, steps whose mean is told where nothing is validated."""
_OF_TAG = re.compile(r"(?P<of>val/env|env|val_correct)/(?P<tag>.+)/(?P<figure>score|success|episodes|mean)")


class ByTag(OfRows):
    def __init__(self, tags: Iterable[str] = ()) -> None:
        """`tags`: all of the run's, also those without training."""
        self._tags = set(tags)
        self.clear()

    def clear(self) -> None:
        self._episodes: dict[str, float] = {}
        self._curves: dict[tuple[str, str, str], list[float]] = {}
        """(training or validation, tag, figure) -> its values."""

    def add(self, step: int, row: MetricsRow) -> None:
        for name, value in row.items():
            found = _OF_TAG.fullmatch(name)
            if found is None or value is None or found["tag"] == "all":
                continue
            of, tag, figure = found.groups()
            if figure == "episodes":
                self._episodes[tag] = self._episodes.get(tag, 0.0) + (value if of == "env" else 0.0)
            elif (of == "val_correct") == (figure == "mean"):
                self._curves.setdefault((of, tag, figure), []).append(value)

    def on_summary(self, summary: Summary, progress: RunProgress) -> None:
        summary["tags"] = self.figures()

    def figures(self) -> dict[str, dict[str, Any]]:
        """Returns tag -> trained episodes, their share, and score and success of the first validation and of the last, else of
        so many steps; nothing of a run with one tag, or without figures."""
        known = {tag for _, tag, _ in self._curves} | self._episodes.keys()
        tags = sorted(known | self._tags) if known else []
        total = sum(self._episodes.values())
        return {tag: dict(self._of(tag, total)) for tag in tags} if len(tags) > 1 else {}

    def _of(self, tag: str, total: float) -> Iterator[tuple[str, Any]]:
        if total:
            yield from (("episodes", int(self._episodes.get(tag, 0))), ("share", self._episodes.get(tag, 0) / total))
        for name, validated in (("score", ("val/env", "score")), ("success", ("val_correct", "mean"))):
            if values := self._curves.get((validated[0], tag, validated[1])):
                yield name, [values[0], values[-1]]
            elif values := self._curves.get(("env", tag, name)):
                yield name, [fmean(values[:STEPS]), fmean(values[-STEPS:])]


def as_table(tags: Mapping[str, Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yields rows of cells; columns that no tag has are left out. `tags`: as summary.json has them."""
    columns = [name for name in ("episodes", "share", "score", "success") if any(name in each for each in tags.values())]
    if tags:
        yield ["", *columns]
    for tag, found in tags.items():
        yield [tag, *(_cell(name, found.get(name)) for name in columns)]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return " → ".join(f"{each:.3g}" for each in value)
    return f"{value:.1%}" if name == "share" else f"{value:,}"
