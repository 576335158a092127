"""Advice that shortens the steps of a run, with the gain: from the times of its two halves.

The model: a step takes as long as the slowest of

    T                  the training half: a step without its waits for groups;
    G                  the rollouts of a batch, with all places of the engines in use;
    (L + T) / (1 + α)  L: the rollouts of a batch alone. Those of 1 + α batches may be under way together.

With a place for every rollout of a batch, L is the time of one rollout; with fewer, they take turns. Places and training work are
taken to be worth the same on every device, and a rollout to take as long however many others run. Measured are T, and which of
the other two holds the step up: G where 1 + α batches need more places than there are, L where they do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from roll.core.configs.ppo import PPOConfig
from roll.core.record.callbacks import Callback, MetricsRow, Summary
from roll.core.record.run_progress import ENGINES, Places, RunProgress
from roll.reports.verdict import STEP_S, WAIT_S, Curves, slow_reward, waiting, wasted

LEAST_STEPS = 10
"""Fewer steps say nothing: the first ones wait until engines have warmed up."""
LEAST_VERSIONS = 3
"""Fewer versions of the weights say nothing of the link. Behind one that takes minutes for each a run has few."""
LEAST_GAIN = 0.05
"""Share of a step below which a gain is not worth advice."""
FASTER = "a faster reward, or more of its judgements at once (its world_size, its max_concurrency), shortens the steps"
MOST_SENDING = 0.5
"""Share of the time that weights may be on their way before nothing else is worth advice."""
OLDEST = 8
"""No larger `async_generation_ratio` is advised: the effect of older samples on a loss has to be tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """Measured figures of a run in which both halves are at work; times are means over its steps."""

    steps: int
    step_s: float
    idle_s: float
    """Time that the training half waited for groups."""
    rollout_s: float
    """Time with at least one rollout under way."""
    ratio: float
    batch: int
    """Rollouts of a step."""
    places: Places
    rollout_devices: int
    train_devices: int
    apart: bool = True
    """True if no device is of both halves."""
    overlap: bool = False
    """Halves that share devices work there at the same time, else in turns."""
    turning: float = 0.0
    """Share of the time in which roles slept or woke."""
    one_process: bool = False
    """Both halves are in one process, where they would slow each other down."""


@dataclass(frozen=True, slots=True)
class _Model:
    """T, and the time of one rollout among others; and the settings that can be changed."""

    train_s: float
    rollout_s: float
    batch: int
    ratio: float
    places: float
    rollout_devices: int
    train_devices: int

    @classmethod
    def of(cls, seen: Halves) -> _Model:
        places, train_s = float(seen.places.total), seen.step_s - seen.idle_s
        turns = seen.batch / places
        if seen.ratio >= 1 and (1 + seen.ratio) * seen.batch > places:
            rollout_s = seen.step_s / turns
        else:
            rollout_s = max((1 + seen.ratio) * seen.step_s - train_s, 0.0) / max(1.0, turns)
        # Where training is what takes long, rollouts may be faster than they had to be.
        rollout_s = min(rollout_s, seen.rollout_s / min(1.0, turns))
        return cls(train_s, rollout_s, seen.batch, seen.ratio, places, seen.rollout_devices, seen.train_devices)

    @property
    def engines_s(self) -> float:
        return self.rollout_s * self.batch / self.places

    @property
    def both_s(self) -> float:
        return self.rollout_s * max(1.0, self.batch / self.places) + self.train_s

    @property
    def step_s(self) -> float:
        return max(self.train_s, self.engines_s, self.both_s / (1 + self.ratio))

    def divided(self, train_devices: int) -> _Model:
        """With so many of the devices for training."""
        rollout_devices = self.rollout_devices + self.train_devices - train_devices
        return replace(
            self,
            train_s=self.train_s * self.train_devices / train_devices,
            places=self.places * rollout_devices / self.rollout_devices,
            train_devices=train_devices,
            rollout_devices=rollout_devices,
        )


@dataclass(frozen=True, slots=True)
class Advice:
    key: str
    value: str
    step_s: float
    """Predicted time of a step, with the advice before this one followed, too."""
    provided: str
    """Assumptions behind the prediction."""


def advise(seen: Halves) -> list[Advice]:
    """Returns changes, to be made one after the other; none if nothing is to be won."""
    found: list[Advice] = []
    if seen.steps < LEAST_STEPS or not seen.apart:
        return found
    model, step_s = _Model.of(seen), seen.step_s
    for change in (_older,) if seen.one_process else (_older, _divided_otherwise, _more_places):
        advice, changed = change(model, seen)
        if changed.step_s < (1 - LEAST_GAIN) * step_s:
            found.append(advice)
            model, step_s = changed, changed.step_s
    return found


def sentences(seen: Halves, waited: float | None = None, wasted: str | None = None, slow: str | None = None) -> Iterator[str]:
    """Yields sentences for people: the bottleneck, and remedies. None for a run that is too short. `waited`: the share of the
    time in its verdict. `wasted`: a clause about groups that were dropped. `slow`: the rewards that groups wait for."""
    if seen.steps < LEAST_STEPS:
        return
    waited = seen.idle_s / seen.step_s if waited is None else waited
    if wasted is not None:
        yield f"{wasted}: tasks that are neither too hard nor too easy, or a larger group, would leave more of them to training"
    if slow is not None:
        yield f"training waited for groups {waited:.0%} of the time, and groups for {slow}: {FASTER}"
        return
    half = "actor_infer" if waited > LEAST_GAIN else "actor_train"
    where = f"{half} is the bottleneck: training waited for groups {waited:.0%} of the time"
    if seen.ratio == 0 and seen.apart:
        stood = max(0.0, 1 - seen.rollout_s / seen.step_s)
        where = f"the halves wait for each other: training for groups {waited:.0%} of the time, rollouts for training {stood:.0%}"
    if not seen.apart:
        yield from _shared(seen, waited)
        return
    advices, before = advise(seen), seen.step_s
    if not advices:
        yield f"balanced: {where}; async_generation_ratio, device_mapping and max_running_requests would not change much"
        return
    yield where
    for one in advices:
        gain = f"a step would take about {one.step_s:.3g} s instead of {before:.3g} s ({1 - one.step_s / before:.0%} less)"
        yield f"{one.key}: {one.value}: {gain}, if {one.provided}"
        before = one.step_s


def _shared(seen: Halves, waited: float) -> Iterator[str]:
    """Yields sentences on halves that share devices: their mutual slowdown is unknown, so that only the gain of turns is
    predicted."""
    waits = f"training waited for groups {waited:.0%} of the time"
    if seen.overlap:
        yield f"both halves work on their devices at the same time: {waits}; what they take from each other is not known"
        return
    yield f"the halves take turns on their devices: {waits}"
    if seen.turning >= LEAST_GAIN:
        key = "sharing: auto" if seen.ratio else "sharing: auto with async_generation_ratio: 1"
        spent = f"nobody sleeps and wakes, which took {seen.turning:.0%} of the time"
        yield f"{key}: {spent}, if the devices have memory for both at once: roll check says"


def slow_link(updates: Mapping[str, float], wall_s: float, whole: bool) -> list[str]:
    """Returns a sentence if weights are on their way for most of the time. `updates`: as in a summary, whose bytes are those of
    `whole` versions, or of more than was sent."""
    share, count = updates["send_s"] / max(wall_s, 1e-9), updates["count"]
    if count < LEAST_VERSIONS or share < MOST_SENDING:
        return []
    each_s = updates["send_s"] / count
    said = f"weights were on their way {share:.0%} of the time, {each_s:.3g} s for each of {count:.0f} versions"
    if not whole:
        return [f"the link to the engines is the bottleneck: {said}; a larger weight_push_interval sends fewer"]
    rate = f"{updates['bytes'] / count / 1e6:.3g} MB at {updates['bytes'] / updates['send_s'] / 1e6:.3g} MB/s"
    less = "a larger weight_push_interval sends fewer, weight_anchor_interval (mode: train) only what has changed"
    return [f"the link to the engines is the bottleneck: {said} ({rate}); {less}"]


def _older(model: _Model, seen: Halves) -> tuple[Advice, _Model]:
    wanted = model.both_s / max(model.train_s, model.engines_s, 1e-9) - 1
    ratio = min(OLDEST, max(math.ceil(wanted - LEAST_GAIN), math.floor(model.ratio) + 1))
    changed = replace(model, ratio=max(float(ratio), model.ratio))
    provided = "both run without --local" if seen.one_process else "rollouts and training do not slow each other down"
    return Advice("async_generation_ratio", f"{ratio}", changed.step_s, provided), changed


def _divided_otherwise(model: _Model, seen: Halves) -> tuple[Advice, _Model]:
    together = model.rollout_devices + model.train_devices
    counts = range(1, together) if seen.places.key == ENGINES else [model.train_devices]
    changed = min(map(model.divided, counts), key=lambda each: each.step_s)
    value = f"{changed.rollout_devices} for actor_infer, {changed.train_devices} for actor_train"
    return Advice("device_mapping", value, changed.step_s, "every device is worth the same to either"), changed


def _more_places(model: _Model, seen: Halves) -> tuple[Advice, _Model]:
    unit = seen.places.unit * model.rollout_devices / seen.rollout_devices
    wanted = min((1 + model.ratio) * model.batch, model.places * model.engines_s / max(model.train_s, 1e-9))
    value = math.ceil(max(wanted, model.places) / unit) if unit else 0
    changed = replace(model, places=max(model.places, value * unit))
    return Advice(seen.places.key, f"{value}", changed.step_s, "each rollout is as fast with more of them running"), changed


class Adviser(Callback):
    """Adds `advice`, sentences for people, and `advised`, settings by key; none of a run that has shown little. A link that holds
    the run up is told alone, and is all that half a run tells."""

    def __init__(self, config: PPOConfig, kind: str, one_process: bool, curves: Curves) -> None:
        """`kind`: of the devices. On CPUs a rollout takes longer the more others run, as if there were places for one batch and
        no more. `one_process`: where halves are in each other's way, only those that take turns can be told apart."""
        self._config, self._kind, self._one_process, self._curves = config, kind, one_process, curves
        self._seen: list[tuple[float, float]] = []
        """Time of each step, and of the wait for groups before it."""

    def on_run_begin(self, step: int, rows: Sequence[MetricsRow]) -> None:
        self._seen = []

    def on_step(self, step: int, metrics: MetricsRow) -> None:
        self._seen.append((metrics[STEP_S], metrics[WAIT_S]))

    def on_summary(self, summary: Summary, progress: RunProgress) -> None:
        summary["advice"] = []
        if progress.places is None:
            return
        config, together = self._config, self._one_process and self._config.trains
        if not together and (updates := summary.get("weight_updates")):
            summary["advice"] = slow_link(updates, progress.elapsed_s, config.weight_anchor_interval == 1)
        told_apart = not together or config.async_generation_ratio == 0
        steady = self._seen[1:]  # for the first everything is slow
        if config.trains and steady and told_apart and not summary["advice"]:
            turns = summary.get("device_turns") or {"count": 0, "mean_s": 0.0}
            turning = turns["count"] * turns["mean_s"] / max(progress.elapsed_s, 1e-9)
            seen = replace(self._halves(steady, progress.generating_s, progress.places), turning=turning)
            waited, slow = waiting(self._curves.curve), None
            if waited is not None and waited > LEAST_GAIN:
                slow = slow_reward(self._curves.curve, self._curves.names)
            summary["advice"] = [*sentences(seen, waited, wasted(summary["groups"]), slow)]
            summary["advised"] = {one.key: one.value for one in advise(seen)} if slow is None else {}

    def _halves(self, steady: Sequence[tuple[float, float]], generating_s: float, places: Places) -> Halves:
        config, roles, steps = self._config, self._config.roles(), len(steady)
        trained_s, idle_s = (sum(seconds) / steps for seconds in zip(*steady, strict=True))
        batch, infer = config.rollouts_per_step, set(roles["actor_infer"].devices)
        if self._kind == "cpu":
            places = places._replace(total=min(places.total, batch), unit=0)
        of_training = [role.devices for name, role in roles.items() if name != "actor_infer"]
        return Halves(
            steps=steps,
            step_s=idle_s + trained_s,
            idle_s=idle_s,
            rollout_s=generating_s / (steps + 1),
            ratio=config.async_generation_ratio,
            batch=batch,
            places=places,
            rollout_devices=len(infer),
            train_devices=len(roles["actor_train"].devices),
            apart=all(map(infer.isdisjoint, of_training)),
            overlap=config.sharing == "overlap",
            one_process=self._one_process,
        )
