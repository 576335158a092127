"""Whether the memory of a process grows without end: a line through its readings, and when it reaches the machine's. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

WARM_UP = 1 / 3
"""Share of the readings, the first ones, that is left out: caches fill."""
BLOCKS = 12
"""The others are averaged in so many blocks, for noise is no growth, ..."""
LEAST_IN_BLOCK = 4
"""... of at least so many readings each, for the first minutes are no growth either."""
STRAIGHT = 0.9
"""Share of the blocks' variance that a line has to explain. A single jump, wherever it lies, stays below 0.83."""
LASTING = 1.5
"""All of this has to hold until there are so many times the readings of when it first did: waves, too, go up for a while."""
MOST_POINTS = 240
REACH = 10
"""A line is not drawn further into the future than this many times its length."""
DAY_S = 86_400.0

Point = tuple[float, float]
"""Seconds, MB."""


@dataclass(frozen=True, slots=True)
class Growth:
    mb_per_s: float
    watched_s: float
    """How long it has been like that."""


class MemoryReadings:
    """The readings of a process, however many: neighbours are averaged when they become too many."""

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._width = 1
        """Readings that make a point."""
        self._next: list[Point] = []
        self._count = 0
        self._straight_since = 0
        """The count when a line began to fit; 0 if none fits."""
        self.growth: Growth | None = None
        """None unless memory grows steadily, and has not stopped to."""

    def add(self, at_s: float, mb: float) -> None:
        self._count += 1
        self._next.append((at_s, mb))
        if len(self._next) == self._width:
            self._points.append(_mean(self._next))
            self._next = []
        if len(self._points) == MOST_POINTS:
            self._points = [_mean(self._points[i : i + 2]) for i in range(0, MOST_POINTS, 2)]
            self._width *= 2
        found = self._fit()
        self._straight_since = (self._straight_since or self._count) if found is not None else 0
        self.growth = found if self._count >= LASTING * self._straight_since else None

    def _fit(self) -> Growth | None:
        late = self._points[round(WARM_UP * len(self._points)) :]
        size = len(late) // BLOCKS
        if size < LEAST_IN_BLOCK:
            return None
        late = late[len(late) % BLOCKS :]
        blocks = [_mean(late[i : i + size]) for i in range(0, len(late), size)]
        slope, explained = line(blocks)
        slope = min(slope, line(blocks[BLOCKS // 2 :])[0])
        return Growth(slope, late[-1][0] - late[0][0]) if slope > 0 and explained >= STRAIGHT else None


def line(points: Sequence[Point]) -> tuple[float, float]:
    """The slope of the least-squares line, and the share of the variance that it explains."""
    mean_x, mean_y = _mean(points)
    xx = sum((x - mean_x) ** 2 for x, _ in points)
    xy = sum((x - mean_x) * (y - mean_y) for x, y in points)
    yy = sum((y - mean_y) ** 2 for _, y in points)
    return (xy / xx, xy * xy / (xx * yy)) if xx and yy else (0.0, 0.0)


def alarm(growing: Mapping[str, Growth], free_mb: float, rest_s: float, step_s: float) -> tuple[str, str] | None:
    """The process that grows most, and a warning, if those of a machine that are `growing` will fill what it has free before the
    run's end in `rest_s`, and within a day. `step_s`: how long a step takes."""
    if not growing:
        return None
    name, worst = max(growing.items(), key=lambda item: item[1].mb_per_s)
    full_s = free_mb / sum(growth.mb_per_s for growth in growing.values())
    if full_s > min(rest_s, DAY_S, REACH * worst.watched_s):
        return None
    others = f" (and that of {len(growing) - 1} more)" if len(growing) > 1 else ""
    return name, (
        f"the memory of {name}{others} has been growing for {worst.watched_s / 60:.0f} min, by {3600 * worst.mb_per_s:.0f} MB/h, "
        f"{step_s * worst.mb_per_s:.3g} MB a step: the machine's free {free_mb:.0f} MB will be full in {full_s / 3600:.1f} h"
    )


def _mean(points: Sequence[Point]) -> Point:
    return fmean(x for x, _ in points), fmean(y for _, y in points)
