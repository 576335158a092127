"""The dozen charts that say how a run is doing. All other metrics are found by name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from roll.view.metrics import HIGHEST, LOWEST


class Line(NamedTuple):
    name: str
    """Of the metric."""
    label: str
    low: str | None = None
    """Metric that is the lower border of a band around the line."""
    high: str | None = None


class Panel(NamedTuple):
    title: str
    lines: tuple[tuple[str, str], ...]
    """Regular expression of the names, and the label; `\\1` in a label is what the first parentheses found."""
    bound: bool = False
    """Draw the staleness bound, too."""
    instead: tuple[tuple[str, str], ...] = ()
    """Lines where there are none of the others."""


PANELS = (
    Panel("Reward", (("critic/score/mean", "mean"),)),
    Panel(
        "Validation",
        ((r"eval/([^/]+)/all/(avg@\d+)", r"\1 \2"),),
        instead=(("val_correct/all/mean", "accuracy"), ("val/score/mean", "score")),
    ),
    Panel("Response length, tokens", (("tokens/response_length/mean", "mean"), ("tokens/response_length/max", "max"))),
    Panel("Cut off by length, share", (("tokens/response_length/clip", "share"),)),
    Panel("Staleness, versions", (("staleness/mean", "mean"), ("staleness/max", "max")), bound=True),
    Panel("Gradient norm", (("actor_train/grad_norm", "norm"),)),
    Panel("Entropy", (("actor/entropy", "entropy"),)),
    Panel("Mismatch of engine and trainer", (("actor/train_infer_k3", "KL (k3)"), ("actor/engine_mismatch", "same weights"))),
    Panel("Effective sample size, share", (("actor/ess", "tokens"), ("actor/train_infer_ess_sequence", "sequences"))),
    Panel("Seconds a step", (("time/step_s", "trains"), ("time/wait_for_batch_s", "waits for a batch"))),
    Panel("Response tokens a second", (("throughput/response_tokens_per_s", "tokens/s"),)),
    Panel("Without a signal, share of groups", (("rewards/groups_without_signal", "share"),)),
    Panel("Success of agents", ((r"env/([^/]+)/success", r"\1"),)),
)


def panels(names: Collection[str]) -> list[dict[str, Any]]:
    """The charts of a run that has these metrics, as plain values."""
    found = []
    for panel in PANELS:
        lines = list(_lines(panel.lines, names)) or list(_lines(panel.instead, names))
        if lines:
            found.append({"title": panel.title, "lines": [line._asdict() for line in lines], "bound": panel.bound})
    return found


def curve_names(panels: list[dict[str, Any]]) -> list[str]:
    """What is to be known to draw them."""
    lines = [line for panel in panels for line in panel["lines"]]
    return list(dict.fromkeys(name for line in lines for name in (line["name"], line["low"], line["high"]) if name))


def line(name: str, label: str, names: Collection[str]) -> Line:
    """With the band that belongs to it: a confidence interval, or the lowest and the highest engine."""
    if f"{name}/low" in names and f"{name}/high" in names:
        return Line(name, label, f"{name}/low", f"{name}/high")
    if f"{name}/1" in names:
        return Line(name, label, name + LOWEST, name + HIGHEST)
    return Line(name, label)


def _lines(patterns: tuple[tuple[str, str], ...], names: Collection[str]) -> Iterator[Line]:
    for pattern, label in patterns:
        for name in sorted(names):
            if match := re.fullmatch(pattern, name):
                yield line(name, match.expand(label), names)
