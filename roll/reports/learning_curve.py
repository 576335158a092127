"""`learning_curve.png`: progress of the run and staleness of its data, drawn from metrics.jsonl."""

from __future__ import annotations

import io
import logging
import time
import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll.core.errors import Superseded
from roll.core.record.callbacks import Callback, Summary
from roll.core.record.estimates import ACCURACY, SCORE
from roll.core.record.journal import read_rows, write_atomically
from roll.core.record.run_progress import RunProgress

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from roll.core.record.run_lock import RunLock

REWARD = "critic/score/mean"
LOSS, PAIR_LOSS = "actor/total_loss", "pairs/loss"
"""In a run that trains rows, and has no rewards, one of them is the loss."""
STALENESS_MEAN = "staleness/mean"
STALENESS_MAX = "staleness/max"

BLUE, ORANGE, GREY, INK = "#1f5fa8", "#d9742b", "#8a8f98", "#2b2f36"
SMOOTHED_FROM = 30
"""Steps from which on the rewards are drawn faintly, under their moving average."""
NAME = "learning_curve.png"
SHARE = 0.01
"""The picture takes no more than this share of the run's time."""
FIRST_S = 2.0
"""Assumed cost of the first picture, in seconds."""

logger = logging.getLogger(__name__)


class LearningCurve(Callback):
    """Draws the picture on a thread, as often as a hundredth of the run's time allows, and at its end. It takes many times as
    long as the other files of a run, the first time above all: it loads the drawing library."""

    def __init__(self, run_dir: Path, title: str, staleness_bound: int, lock: RunLock | None) -> None:
        self._run_dir, self._title, self._bound, self._lock = run_dir, title, staleness_bound, lock
        self._thread = ThreadPoolExecutor(1, "picture")
        self._due = time.monotonic() + FIRST_S / SHARE
        self._failed = False

    def on_refresh(self, progress: RunProgress) -> None:
        if time.monotonic() >= self._due:
            self._due = inf
            self._thread.submit(self._draw)

    def on_run_end(self, summary: Summary) -> None:
        self._thread.shutdown()
        self._draw()

    def _draw(self) -> None:
        """Draws the picture; warns if it cannot be drawn."""
        began = time.thread_time()
        try:
            if self._lock is not None:
                self._lock.check()
            plot(self._run_dir / "metrics.jsonl", self._run_dir / NAME, self._title, self._bound)
            self._failed = False
        except Exception as error:  # boundary: the drawing library may raise anything, and a picture is not worth a run
            if not self._failed and not isinstance(error, Superseded):
                logger.warning("%s is not up to date: %s", NAME, error)
            self._failed = True
        self._due = time.monotonic() + (time.thread_time() - began) / SHARE


def plot(metrics_path: Path, out_path: Path, title: str, staleness_bound: int | None = None) -> bool:
    """Writes the picture (PNG). Returns False, writing nothing, when there is no value to draw yet. Raises `OSError`."""
    curves = read_curves(read_rows(metrics_path), (ACCURACY, SCORE, REWARD, STALENESS_MEAN, STALENESS_MAX))
    if not any(curves.values()):
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.6), dpi=150, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    learning, staleness = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
    figure.suptitle(title, x=0.012, ha="left", fontsize=13, fontweight="bold", color=INK)
    label = "validation accuracy" if curves[ACCURACY] else "validation score"
    _draw_learning(learning, curves[ACCURACY] or curves[SCORE], curves[REWARD], label)
    _draw_staleness(staleness, curves[STALENESS_MEAN], curves[STALENESS_MAX], staleness_bound)
    for axes in (learning, staleness):
        _clean(axes)
    staleness.set_xlabel("training step", color=INK)
    picture = io.BytesIO()
    with warnings.catch_warnings():  # a name may have characters that its font has not, which stand as boxes
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        figure.savefig(picture)
    write_atomically(out_path, picture.getvalue())
    return True


def read_curves(rows: Iterable[dict[str, Any]], names: Iterable[str]) -> dict[str, list[tuple[int, float]]]:
    """Returns `[(step, value)]` of each name, by step. Where a step was logged twice the later value stands."""
    curves: dict[str, dict[int, float]] = {name: {} for name in names}
    for row in rows:
        for name, curve in curves.items():
            if row.get(name) is not None:
                curve[row["step"]] = row[name]
    return {name: sorted(curve.items()) for name, curve in curves.items()}


def moving_average(values: list[float], reach: int) -> list[float]:
    """Returns the mean of each value and those of its up to `reach` neighbours on either side that exist."""
    windows = (values[max(0, i - reach) : i + reach + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def _draw_learning(axes: Axes, validation: list[tuple[int, float]], reward: list[tuple[int, float]], label: str) -> None:
    if reward:
        steps, values = [step for step, _ in reward], [value for _, value in reward]
        if len(values) >= SMOOTHED_FROM:
            axes.plot(steps, values, color=ORANGE, linewidth=0.8, alpha=0.35)
            values = moving_average(values, reach=len(values) // 30 + 1)
        axes.plot(steps, values, color=ORANGE, linewidth=1.6, label="training reward")
    if validation:
        from matplotlib.patheffects import withStroke

        steps, values = [step for step, _ in validation], [value for _, value in validation]
        axes.plot(steps, values, color=BLUE, linewidth=2.2, marker="o", markersize=4.5, label=label)
        rising = values[-1] >= values[0]
        for at, above in {0: not rising or len(values) == 1, len(values) - 1: rising}.items():
            number = axes.annotate(
                f"{values[at]:.2f}",
                (steps[at], values[at]),
                xytext=(0, 9 if above else -17),
                textcoords="offset points",
                ha="center",
                color=BLUE,
                fontsize=9.5,
                weight="bold",
            )
            number.set_path_effects([withStroke(linewidth=3, foreground="white")])
    drawn = [value for _, value in [*validation, *reward]]
    if drawn and min(drawn) >= 0 and max(drawn) <= 1:
        axes.set_ylim(0, 1.05)
    axes.set_ylabel("accuracy, reward", color=INK)
    if drawn:
        axes.legend(loc="lower right", frameon=False, labelcolor=INK)


def _draw_staleness(axes: Axes, mean: list[tuple[int, float]], largest: list[tuple[int, float]], bound: int | None) -> None:
    from matplotlib.ticker import MaxNLocator

    if bound is not None:
        axes.axhline(bound, color=ORANGE, linewidth=1.2, linestyle=(0, (4, 3)), label="bound")
    if largest:
        steps, values = zip(*largest, strict=True)
        axes.scatter(steps, values, color=GREY, s=7, linewidths=0, label="max", zorder=3, clip_on=False)
    if mean:
        steps, values = zip(*mean, strict=True)
        axes.fill_between(steps, values, color=BLUE, alpha=0.15, linewidth=0)
        axes.plot(steps, values, color=BLUE, linewidth=1.4, label="mean")
    top = max([bound or 0, 1, *(value for _, value in largest + mean)])
    axes.set_ylim(-0.06 * top, top * 1.12)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, steps=[1, 2, 5, 10]))
    axes.set_ylabel("staleness\n(versions)", color=INK)
    if axes.get_legend_handles_labels()[0]:
        small = {"fontsize": 9, "handlelength": 1.4, "columnspacing": 1.4}
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 0.94), ncols=3, frameon=False, labelcolor=INK, **small)


def _clean(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#c9ccd1")
    axes.tick_params(colors=INK, length=0, labelsize=9)
    axes.grid(axis="y", color="#e8eaed", linewidth=0.8)
    axes.set_axisbelow(True)
