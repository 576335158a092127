"""State of a run, in one line: the same in the live view, at its end, in `roll show RUN` and on the page.

Causes of its end, or obstacles to all learning, come before its progress; the causes of its slowness come last."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from math import isfinite, sqrt
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

from roll.core.configs.sizes import compact, counted
from roll.core.groups.progress import EXPECTED, UNJUDGED
from roll.core.record.callbacks import MetricsRow, Summary
from roll.core.record.episode_metrics import LEAST_VALID
from roll.core.record.estimates import ACCURACY, ERRORS, ROLLOUTS, SCORE
from roll.core.record.run_progress import RunProgress
from roll.reports.best_steps import told_best
from roll.reports.learning_curve import REWARD
from roll.reports.rows import OfRows
from roll.reports.table import Row, Table

CUT, WITHOUT_SIGNAL = "tokens/response_length/clip", "rewards/groups_without_signal"
STEP_S, WAIT_S = "time/step_s", "time/wait_for_batch_s"
LOSS = "val/loss"
"""Loss of rows that are evaluated as they stand: nothing is sampled."""
NAMES = (REWARD, ACCURACY, SCORE, LOSS, ERRORS, ROLLOUTS, CUT, LEAST_VALID, WITHOUT_SIGNAL, STEP_S, WAIT_S)
IDLE, REWARDS = "idle_share/", "rewards."
"""Metrics that the verdict reads, and those that begin so."""
FEW_VALID = 0.05
"""Share of valid actions below which an agent has not understood its task."""
PATIENCE = 3
"""Steps before an obstacle is told."""
RECENT = 5
"""Steps that show the present state."""
FEWEST = 8
"""Fewest steps that show a trend."""
LONGER = 0.2
"""Share of the time by which a reward has to be at work longer than the engines."""
MOST_CUT, MOST_WITHOUT_SIGNAL, MOST_WAITING, MOST_DROPPED = 0.5, 0.95, 0.8, 0.5
FEW_GROUPS = 8
"""Groups dropped before the first step from which on they are mentioned."""
NOISY = 200
"""Steps that show the deviation of rewards."""
STOPPED = ("failed", "crashed", "stopped", "interrupted")
ERRORS_SAID = 2.0
"""Standard errors from which on a difference is more than noise."""

Kind = Literal["learning", "no gain", "worse", "no signal", "invalid", "not judged", "cut off", "idle", "stopped", "too early"]
Level = Literal["good", "warning", "error", ""]
LEVELS: dict[Kind, Level] = {"learning": "good", "too early": "", "stopped": "error", "not judged": "error"}
"""Gravity of each kind of verdict; `warning` for the others."""


class Curve(NamedTuple):
    steps: Sequence[int]
    values: Sequence[float]


class Verdict(NamedTuple):
    kind: Kind
    text: str

    @property
    def level(self) -> Level:
        return LEVELS.get(self.kind, "warning")

    @property
    def line(self) -> str:
        return f"{self.kind}: {self.text}"


class Curves(OfRows):
    """The curves of the metrics that it reads, and the verdict on the run that follows from them."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._known: dict[str, tuple[list[int], list[float]]] = {}

    def add(self, step: int, row: MetricsRow) -> None:
        for name in (*NAMES, *(name for name in row if name.startswith(IDLE))):
            if (value := row.get(name)) is not None and isfinite(value):
                steps, values = self._known.setdefault(name, ([], []))
                steps.append(step)
                values.append(value)

    def curve(self, name: str) -> Curve:
        return Curve(*self._known.get(name, ([], [])))

    @property
    def names(self) -> list[str]:
        return [*self._known]

    def on_summary(self, summary: Summary, progress: RunProgress) -> None:
        if "status" in summary:
            found = verdict(self.curve, summary["status"], summary["groups"], self.names)
            summary["verdict"] = with_best(found, summary)._asdict()


def with_best(found: Verdict, summary: Mapping[str, Any]) -> Verdict:
    """Adds the best checkpoint, where the run keeps it (`keep_best`)."""
    told = told_best(summary.get("best"))
    return found._replace(text=f"{found.text}; {told}") if told else found


def verdict(
    curve: Callable[[str], Curve],
    state: str = "running",
    groups: Mapping[str, Any] | None = None,
    names: Collection[str] = (),
) -> Verdict:
    """`curve`: of a metric, by name; `names`: of all metrics. `state`: as `roll.view.run.state_of` has it; its reason is told
    beside it. `groups`: counts of admitted, trained and dropped ones, by reason, as in summary.json."""
    course = _course(curve, groups or {}, names)
    if state == "silent":
        return Verdict("idle", f"nothing has been written for a while; until then {course.line}")
    if state in STOPPED:
        so_far = f", {course.text}" if course.kind == "too early" else f"; until then {course.line}"
        return Verdict("stopped", state + so_far)
    if course.kind not in ("learning", "no gain", "worse"):
        return course
    return Verdict(course.kind, "; ".join([course.text, *(text for _, text in _obstacles(curve, groups or {}, names))]))


def _course(curve: Callable[[str], Curve], groups: Mapping[str, Any], names: Collection[str]) -> Verdict:
    """Returns the verdict on learning, or the reason why nothing is learned."""
    if (unjudged := _unjudged(curve, groups)) is not None:
        return unjudged
    steps = max((curve(name).steps for name in (REWARD, STEP_S)), key=len)  # a run on rows has no rewards
    if not len(steps):
        return Verdict("too early", "no step yet")
    trend = _trend(curve)
    if trend is not None and trend.kind == "learning":
        return trend
    first = next(_obstacles(curve, groups, names), None) if len(steps) >= PATIENCE else None
    if first is not None:
        return Verdict(first[0], first[1] + (f"; {trend.text}" if trend is not None else ""))
    return trend or Verdict("too early", f"{counted(len(steps), 'step')} so far")


def _unjudged(curve: Callable[[str], Curve], groups: Mapping[str, Any]) -> Verdict | None:
    dropped, trained = _dropped(groups), groups.get("trained") or 0
    lost, gone = sum(dropped.get(reason, 0) for reason in UNJUDGED), sum(dropped.values())
    if lost > trained and lost >= FEW_GROUPS:
        why = listed({reason: dropped[reason] for reason in UNJUDGED if dropped.get(reason)})
        return Verdict("not judged", f"{lost:,} groups were dropped ({why}), {trained:,} trained")
    if not trained and gone >= FEW_GROUPS:
        return Verdict("no signal", f"{gone:,} groups were dropped ({listed(dropped)}), none trained")
    errors, accuracy = curve(ERRORS), curve(ACCURACY)
    if len(errors.steps) and errors.values[-1] and errors.steps[-1] not in accuracy.steps[-1:]:
        rollouts = dict(zip(*curve(ROLLOUTS), strict=True)).get(errors.steps[-1])
        of_all = f" of {rollouts:,.0f}" if rollouts else ""
        text = f"{errors.values[-1]:,.0f}{of_all} validation rollouts of step {errors.steps[-1]} have no reward"
        return Verdict("not judged", text)
    return None


def _dropped(groups: Mapping[str, Any]) -> Mapping[str, int]:
    dropped = groups.get("dropped")
    return dropped if isinstance(dropped, Mapping) else {}


def listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def wasted(groups: Mapping[str, Any]) -> str | None:
    """Returns a clause where at least half of the judged groups were dropped by a rule."""
    dropped = {reason: count for reason, count in _dropped(groups).items() if reason not in (*EXPECTED, *UNJUDGED)}
    gone = sum(dropped.values())
    judged = gone + (groups.get("trained") or 0)
    if gone < max(FEW_GROUPS, MOST_DROPPED * judged):
        return None
    return f"{gone / judged:.0%} of the groups ({gone:,} of {judged:,}) are dropped ({listed(dropped)})"


def waiting(curve: Callable[[str], Curve]) -> float | None:
    """Returns the share of the time, over all steps but the first, for which everything is slow, in which training waited for
    groups."""
    waited, trained = (curve(name).values[1:] for name in (WAIT_S, STEP_S))
    spent = sum(waited) + sum(trained)
    return sum(waited) / spent if spent else None


def slow_reward(curve: Callable[[str], Curve], names: Collection[str]) -> str | None:
    """Names the rewards that groups wait for, and how long they and the engines are at work, in all steps but the first. None
    where no reward is at work longer than the engines: the difference is the least time in which groups are judged and none is
    generated. `names`: of all metrics."""
    waits = dict(zip(*curve(WAIT_S), strict=True))
    spent = {step: seconds + waits.get(step, 0.0) for step, seconds in zip(*curve(STEP_S), strict=True)}
    engines = _busy(curve(IDLE + "actor_infer"), spent)
    if engines is None:
        return None
    busy = {name.removeprefix(IDLE): _busy(curve(name), spent) or 0.0 for name in names if name.startswith(IDLE + REWARDS)}
    slow = sorted((name for name in busy if busy[name] >= engines + LONGER), key=lambda name: -busy[name])
    if not slow:
        return None
    shares = " and ".join(f"{busy[name]:.0%}" for name in slow)
    return f"{' and '.join(slow)} (at work {shares} of the time, actor_infer {engines:.0%})"


def _busy(idle: Curve, spent: Mapping[int, float]) -> float | None:
    """Returns the share of the time at which a role was at work."""
    known = [(share, spent[step]) for step, share in zip(*idle, strict=True) if step in spent][1:]
    seconds = sum(each for _, each in known)
    return sum((1 - share) * each for share, each in known) / seconds if seconds else None


def _trend(curve: Callable[[str], Curve]) -> Verdict | None:
    """Returns the trend of the validations, their accuracy first; of training rewards where there is at most one validation.
    None: too little is known."""
    rewards = _of_rewards(curve(REWARD))
    both = (_of_validations(curve, ACCURACY, "validation"), _of_validations(curve, SCORE, "score"))
    told = [found for found in both if found is not None]
    best = next((found for found in told if found.kind == "learning"), told[0] if told else None)
    if best is None:
        return rewards
    if best.kind != "learning" and rewards is not None and rewards.kind == "learning":
        return Verdict(best.kind, f"{best.text}, though {rewards.text}: read samples, the reward may be gamed")
    return best


def _of_validations(curve: Callable[[str], Curve], name: str, label: str) -> Verdict | None:
    steps, values = curve(name)
    if len(steps) < 2:
        return None
    judged = dict(zip(*curve(ROLLOUTS), strict=True)).get(steps[-1], 0.0) or 100.0
    scale = max(1.0, *map(abs, values))
    share = min(max((values[0] + values[-1]) / 2 / scale, 0.0), 1.0)
    sampled = not len(curve(LOSS).steps)
    noise = scale * sqrt(2 * max(share * (1 - share), 1 / judged) / judged) * sampled
    return _judged(label, values[0], values[-1], noise, steps[-1] - steps[0])


def _of_rewards(curve: Curve) -> Verdict | None:
    values = curve.values
    if len(values) < FEWEST:
        return None
    size = min(max(len(values) // 4, 1), 2 * RECENT)
    changes = [after - before for before, after in pairwise(values[-NOISY:])]
    noise = stdev(changes) / sqrt(size)  # a step deviates by it over the root of 2, the difference of two means by that times it
    return _judged("reward", fmean(values[:size]), fmean(values[-size:]), noise, curve.steps[-1] - curve.steps[0])


def _judged(label: str, first: float, last: float, noise: float, steps: int) -> Verdict:
    gain = last - first
    least = max(ERRORS_SAID * noise, 1e-3 * max(abs(first), abs(last)))
    kind: Kind = "learning" if gain > least else "worse" if gain < -least else "no gain"
    return Verdict(kind, f"{label} {compact(first)} → {compact(last)} ({compact(gain, '+')}) in {counted(steps, 'step')}")


def _equal_rewards(_: str, same: float, recent: MetricsRow) -> str:
    at = f" (mean {recent[REWARD]:.3g})" if REWARD in recent else ""
    return f"in {same:.0%} of the groups all rewards are equal{at}"


OBSTACLES: tuple[tuple[Kind, Row], ...] = (
    ("cut off", Row(CUT, lambda cut, _: cut >= MOST_CUT, "{value:.0%} of the responses end at the length limit")),
    ("invalid", Row(LEAST_VALID, lambda valid, _: valid < FEW_VALID, "{value:.0%} of the actions are valid")),
    ("no signal", Row(WITHOUT_SIGNAL, lambda same, _: same >= MOST_WITHOUT_SIGNAL, _equal_rewards)),
)
"""By the mean of the last steps, the gravest first."""


def _obstacles(curve: Callable[[str], Curve], groups: Mapping[str, Any], names: Collection[str]) -> Iterator[tuple[Kind, str]]:
    """Yields obstacles to learning in the last steps, and the losses of the run in all its steps."""
    latest = {name: curve(name).values[-RECENT:] for name in (CUT, LEAST_VALID, WITHOUT_SIGNAL, REWARD)}
    recent = {name: fmean(values) for name, values in latest.items() if len(values)}
    for place, _, text in Table([row for _, row in OBSTACLES]).judge(recent):
        yield OBSTACLES[place][0], text
    if (lost := wasted(groups)) is not None:
        yield "no signal", lost
    if (waited := waiting(curve)) is not None and waited > MOST_WAITING:
        judged = slow_reward(curve, names)
        yield "idle", f"training waits for groups {waited:.0%} of the time{f', and groups for {judged}' if judged else ''}"
