"""The curves of a run: metrics.jsonl as columns, and the dozen charts that show the state of a run. All other metrics are found
by name. Pure but for the reading."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from roll.reports.verdict import Curve
from roll.view.journal import Journal, Place, Row, number, shown, whole

MOST_VALUES = 10_000_000
"""Values of one run, about 160 MB; later rows are left out, and their values counted."""
MOST_DRAWN = 1_000
"""Points of a curve that a page gets: more than a chart has columns."""
LOWEST, HIGHEST = "/lowest engine", "/highest engine"
"""Behind the name of a metric that each engine has (`name/0`, `name/1`, ...): the envelope over engines."""
ELAPSED, SPEED = "time/elapsed_s", "throughput/response_tokens_per_s"


class Metrics(Journal):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "metrics.jsonl")
        self.left_out = 0
        self.forget()

    def forget(self) -> None:
        self._curves: dict[str, tuple[array[int], array[float]]] = {}
        self._by_name_in_file: dict[str, tuple[array[int], array[float]]] = {}
        self._size = 0

    @property
    def last(self) -> dict[str, float]:
        """Returns the value of each metric at its last step."""
        return {name: values[-1] for name, (_, values) in self._curves.items()}

    def take(self, row: Row, place: Place) -> None:
        step = whole(row.get("step"))
        if step is None:
            self.damaged += 1
            return
        if self._size >= MOST_VALUES:
            self.left_out += len(row) - 1
            return
        known = self._by_name_in_file
        for name, value in row.items():
            if name != "step" and (found := number(value)) is not None:
                _put(known.get(name) or self._new(name), step, found)
                self._size += 1

    def _new(self, name: str) -> tuple[array[int], array[float]]:
        curve = self._curves.setdefault(shown(name), (array("q"), array("d")))
        self._by_name_in_file[name] = curve
        return curve

    def names(self) -> list[str]:
        return sorted(self._curves)

    def curve(self, name: str, since: int = -1) -> Curve:
        """Returns the values of steps after `since`; empty where there are none."""
        for ending, choose in ((LOWEST, min), (HIGHEST, max)):
            if name.endswith(ending):
                of_engine = re.compile(re.escape(name.removesuffix(ending)) + r"/\d+")
                return _envelope([self.curve(one, since) for one in self._curves if of_engine.fullmatch(one)], choose)
        steps, values = self._curves.get(name, (array("q"), array("d")))
        at = bisect_left(steps, since + 1)
        return Curve(steps[at:], values[at:])

    def clock(self) -> dict[int, tuple[float, float]]:
        """Returns step -> seconds and response tokens since the run began, a run that was resumed going on where it had been."""
        speed = dict(zip(*self.curve(SPEED), strict=True))
        seconds = tokens = before = 0.0
        found = {}
        for step, noted in zip(*self.curve(ELAPSED), strict=True):
            spent = noted - before if noted >= before else noted
            before = noted
            seconds += spent
            tokens += speed.get(step, 0.0) * spent
            found[step] = seconds, tokens
        return found


def _put(curve: tuple[array[int], array[float]], step: int, value: float) -> None:
    steps, values = curve
    if not steps or step > steps[-1]:
        steps.append(step)
        values.append(value)
    elif steps[at := bisect_left(steps, step)] == step:  # the later value stands
        values[at] = value
    else:
        steps.insert(at, step)
        values.insert(at, value)


def thinned(curve: Curve, most: int = MOST_DRAWN) -> Curve:
    """Returns at most about `most` points: the lowest and the highest of each stretch of a longer curve, so that no peak is
    lost."""
    count = len(curve.steps)
    if count <= most:
        return curve
    kept: list[int] = []
    stretch = -(-2 * count // most)
    for start in range(0, count, stretch):
        places = range(start, min(start + stretch, count))
        kept += sorted({min(places, key=curve.values.__getitem__), max(places, key=curve.values.__getitem__)})
    kept = sorted({0, *kept, count - 1})
    return Curve([curve.steps[i] for i in kept], [curve.values[i] for i in kept])


def _envelope(curves: Sequence[Curve], choose: Callable[[float, float], float]) -> Curve:
    found: dict[int, float] = {}
    for curve in curves:
        for step, value in zip(*curve, strict=True):
            found[step] = choose(found[step], value) if step in found else value
    return Curve(sorted(found), [found[step] for step in sorted(found)])


class ChartLine(NamedTuple):
    name: str
    """Name of the metric."""
    label: str
    low: str | None = None
    """Metric that is the lower border of a band around the line."""
    high: str | None = None


class Panel(NamedTuple):
    title: str
    lines: tuple[tuple[str, str], ...]
    """Regular expression of the names, and the label; `\\1` in a label is the match of the first parentheses."""
    good: str
    """The good range, in a few words."""
    meaning: str
    """A sentence: its meaning, or a remedy where it is not good."""
    bound: bool = False
    """Draw the staleness bound, too."""
    instead: tuple[tuple[str, str], ...] = ()
    """Lines where there are none of the others."""


PANELS = (
    Panel("Reward", (("critic/score/mean", "mean"),), "rises", "If it rises and validation does not, the reward is being gamed: "
          "read samples."),
    Panel("Validation", ((r"eval/([^/]+)/all/(avg@\d+)", r"\1 \2"),), "rises", "The share of answers to other prompts that are "
          "right; a rise within the band may be chance.",
          instead=(("val_correct/all/mean", "accuracy"), ("val/score/mean", "score"))),
    Panel("Response length, tokens", (("tokens/response_length/mean", "mean"), ("tokens/response_length/max", "max")),
          "what the task needs", "If it rises and the reward does not, the reward may pay for length."),
    Panel("Cut off by length, share", (("tokens/response_length/clip", "share"),), "near 0", "Else responses are cut off before "
          "they answer: a larger response_length."),
    Panel("Staleness, versions", (("staleness/mean", "mean"), ("staleness/max", "max")), "below the bound",
          "How many versions older the weights were that sampled the data.", bound=True),
    Panel("Gradient norm", (("actor_train/grad_norm", "norm"),), "above 0, without peaks", "At 0 nothing is learned; ever "
          "higher peaks ask for a smaller learning rate, or clipping."),
    Panel("Entropy", (("actor/entropy", "entropy"),), "falls slowly", "Near 0 the model always says the same, and groups have "
          "nothing to compare."),
    Panel("Mismatch of engine and trainer", (("actor/train_infer_k3", "KL (k3)"), ("actor/engine_mismatch", "same weights")),
          "1e-3 and less", "Else engine and trainer disagree, or samples are too old."),
    Panel("Effective sample size, share", (("actor/ess", "tokens"), ("actor/train_infer_ess_sequence", "sequences")), "near 1",
          "Else few samples carry the step: less staleness, another loss."),
    Panel("Seconds per step", (("time/step_s", "trains"), ("time/wait_for_batch_s", "waits for a batch")), "short waits",
          "Long waits mean that rollouts are the bottleneck: the lanes of Time say who was waited for."),
    Panel("Response tokens per second", (("throughput/response_tokens_per_s", "tokens/s"),), "steady",
          "The speed of the run, waits included."),
    Panel("Without a signal, share of groups", (("rewards/groups_without_signal", "share"),), "below 0.5",
          "Else nearly all groups are all right or all wrong: other prompts, or a filter."),
    Panel("Success of agents", ((r"env/([^/]+)/success", r"\1"),), "rises",
          "The share of training episodes that reached their goal."),
)  # fmt: skip


def panels(names: Collection[str]) -> list[dict[str, Any]]:
    """Returns the charts of a run that has these metrics, as plain values."""
    found = []
    for panel in PANELS:
        lines = list(_lines(panel.lines, names)) or list(_lines(panel.instead, names))
        if lines:
            told = {"title": panel.title, "good": panel.good, "meaning": panel.meaning, "bound": panel.bound}
            found.append(told | {"lines": [line._asdict() for line in lines]})
    return found


def titles(names: Collection[str]) -> dict[str, str]:
    """Returns the first metric of each chart, and its usual name."""
    return {panel["lines"][0]["name"]: panel["title"] for panel in panels(names)}


def curve_names(panels: list[dict[str, Any]]) -> list[str]:
    """Returns the names of the metrics that the panels draw."""
    lines = [line for panel in panels for line in panel["lines"]]
    return list(dict.fromkeys(name for line in lines for name in (line["name"], line["low"], line["high"]) if name))


def chart_line(name: str, label: str, names: Collection[str]) -> ChartLine:
    """Returns a line with its band: a confidence interval, or the lowest and the highest engine."""
    if f"{name}/low" in names and f"{name}/high" in names:
        return ChartLine(name, label, f"{name}/low", f"{name}/high")
    if f"{name}/1" in names:
        return ChartLine(name, label, name + LOWEST, name + HIGHEST)
    return ChartLine(name, label)


def _lines(patterns: tuple[tuple[str, str], ...], names: Collection[str]) -> Iterator[ChartLine]:
    for pattern, label in patterns:
        for name in sorted(names):
            if match := re.fullmatch(pattern, name):
                yield chart_line(name, match.expand(label), names)
