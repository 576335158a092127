"""The best steps of a run by a metric, and the patience with one that gets no better. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import inf, isclose, isfinite
from typing import Any, Literal, NamedTuple

from roll.core.configs.sizes import compact

Mode = Literal["max", "min"]
OVERTAKEN = 2
"""Number of later validations after which one that is missing is waited for no more: explorers of their own validate side by
side, and one may have died."""


class ScoredStep(NamedTuple):
    step: int
    value: float


def ranked(values: Mapping[int, float], mode: Mode) -> list[ScoredStep]:
    """Returns the finite values, the best first; of equal ones the earlier."""
    sign = -1 if mode == "max" else 1
    return sorted(
        (ScoredStep(*each) for each in values.items() if isfinite(each[1])), key=lambda each: (sign * each.value, each.step)
    )


def kept(values: Mapping[int, float], mode: Mode, count: int, steps: Collection[int]) -> list[ScoredStep]:
    """Returns the `count` best of `steps`, which have a checkpoint, the best first."""
    return [each for each in ranked(values, mode) if each.step in steps][:count]


def awaited(due: Iterable[int], judged: Collection[int]) -> set[int]:
    """Returns those of the steps to be validated whose validation may still come."""
    return {step for step in due if step not in judged and sum(each > step for each in judged) < OVERTAKEN}


class Waiting(NamedTuple):
    best: ScoredStep | None
    """The last value that was a gain."""
    since: int
    """Values since then."""


def waiting(values: Iterable[ScoredStep], mode: Mode, least: float) -> Waiting:
    """Returns how long there has been no gain. The first finite value is one; NaN never is."""
    best, since, sign = None, 0, 1 if mode == "max" else -1
    for each in values:
        gain = sign * (each.value - best.value) if best is not None else inf
        if isfinite(each.value) and gain > 0 and (gain >= least or isclose(gain, least)):
            best, since = each, 0
        else:
            since += 1
    return Waiting(best, since)


class Best(NamedTuple):
    """The best checkpoint of a run, as best.json and summary.json have it."""

    metric: str
    mode: Mode
    step: int
    value: float
    last_step: int
    """The last step that was validated."""
    last_value: float
    kept: list[ScoredStep]
    """All checkpoints that stay for their value."""
    better: ScoredStep | None
    """A better step that has no checkpoint, as the model before training has none."""

    def plain(self) -> dict[str, Any]:
        better = self.better and self.better._asdict()
        return self._asdict() | {"kept": [each._asdict() for each in self.kept], "better": better}


def told_best(best: Any) -> str:
    """Returns the best checkpoint, and how far the last step is from it, in words. `best`: as a file may have it; empty for what
    is none."""
    try:
        step, last, value = best["step"], best["last_step"], compact(best["value"])
        if last == step:
            text = f"the best checkpoint is the last validated step, {step} ({best['metric']} {value})"
        else:
            far = f"{compact(abs(best['last_value'] - best['value']))} {'below' if best['mode'] == 'max' else 'above'}"
            text = f"the best checkpoint is step {step} ({best['metric']} {value}), and step {last}, the last one, is {far}"
        without = best["better"]
        return text + (f"; step {without['step']} had {compact(without['value'])}, and no checkpoint" if without else "")
    except (TypeError, LookupError, ValueError):
        return ""


def best_of(values: Mapping[int, float], metric: str, mode: Mode, count: int, steps: Collection[int]) -> Best | None:
    """`values`: by step. `steps`: those that have a checkpoint. None: no value has one."""
    staying, every = kept(values, mode, count, steps), ranked(values, mode)
    if not staying:
        return None
    best, last = staying[0], max(step for step, _ in every)
    return Best(metric, mode, *best, last, values[last], staying, every[0] if every[0].value != best.value else None)
