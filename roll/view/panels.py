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
    good: str
    """Where it should be, in a few words."""
    meaning: str
    """A sentence: what it is, or what to do where it is not good."""
    bound: bool = False
    """Draw the staleness bound, too."""
    instead: tuple[tuple[str, str], ...] = ()
    """Lines where there are none of the others."""


PANELS = (
    Panel(
        "Reward",
        (("critic/score/mean", "mean"),),
        "rises",
        "If it rises and validation does not, the reward is being gamed: read samples.",
    ),
    Panel(
        "Validation",
        ((r"eval/([^/]+)/all/(avg@\d+)", r"\1 \2"),),
        "rises",
        "The share of answers to other prompts that are right; a rise within the band may be chance.",
        instead=(("val_correct/all/mean", "accuracy"), ("val/score/mean", "score")),
    ),
    Panel(
        "Response length, tokens",
        (("tokens/response_length/mean", "mean"), ("tokens/response_length/max", "max")),
        "what the task needs",
        "If it rises and the reward does not, the reward may pay for length.",
    ),
    Panel(
        "Cut off by length, share",
        (("tokens/response_length/clip", "share"),),
        "near 0",
        "Else responses are cut off before they answer: a larger response_length.",
    ),
    Panel(
        "Staleness, versions",
        (("staleness/mean", "mean"), ("staleness/max", "max")),
        "below the bound",
        "How many versions older the weights were that sampled the data.",
        bound=True,
    ),
    Panel(
        "Gradient norm",
        (("actor_train/grad_norm", "norm"),),
        "above 0, without peaks",
        "At 0 nothing is learned; ever higher peaks ask for a smaller learning rate, or clipping.",
    ),
    Panel(
        "Entropy",
        (("actor/entropy", "entropy"),),
        "falls slowly",
        "Near 0 the model always says the same, and groups have nothing to compare.",
    ),
    Panel(
        "Mismatch of engine and trainer",
        (("actor/train_infer_k3", "KL (k3)"), ("actor/engine_mismatch", "same weights")),
        "1e-3 and less",
        "Else engine and trainer disagree, or samples are too old.",
    ),
    Panel(
        "Effective sample size, share",
        (("actor/ess", "tokens"), ("actor/train_infer_ess_sequence", "sequences")),
        "near 1",
        "Else few samples carry the step: less staleness, another loss.",
    ),
    Panel(
        "Seconds a step",
        (("time/step_s", "trains"), ("time/wait_for_batch_s", "waits for a batch")),
        "short waits",
        "Long waits mean that rollouts are the bottleneck: the lanes of Time say who was waited for.",
    ),
    Panel(
        "Response tokens a second",
        (("throughput/response_tokens_per_s", "tokens/s"),),
        "steady",
        "The speed of the run, waits included.",
    ),
    Panel(
        "Without a signal, share of groups",
        (("rewards/groups_without_signal", "share"),),
        "below 0.5",
        "Else nearly all groups are all right or all wrong: other prompts, or a filter.",
    ),
    Panel(
        "Success of agents",
        ((r"env/([^/]+)/success", r"\1"),),
        "rises",
        "The share of training episodes that reached their goal.",
    ),
)


def panels(names: Collection[str]) -> list[dict[str, Any]]:
    """The charts of a run that has these metrics, as plain values."""
    found = []
    for panel in PANELS:
        lines = list(_lines(panel.lines, names)) or list(_lines(panel.instead, names))
        if lines:
            told = {"title": panel.title, "good": panel.good, "meaning": panel.meaning, "bound": panel.bound}
            found.append(told | {"lines": [line._asdict() for line in lines]})
    return found


def titles(names: Collection[str]) -> dict[str, str]:
    """The first metric of each chart, and what people call it."""
    return {panel["lines"][0]["name"]: panel["title"] for panel in panels(names)}


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
