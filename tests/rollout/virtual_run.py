"""A whole run on a virtual clock: the real admission, selection and depth logic, with durations instead of work."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from virtual_weights import VirtualWeights

from roll.rollout.admission import Admission, GroupState
from roll.rollout.pipeline_depth import PipelineDepth


@dataclass
class Outcome:
    lags: list[int] = field(default_factory=list)
    trained_ids: list[int] = field(default_factory=list)
    trained_by_step: list[list[int]] = field(default_factory=list)
    replays: int = 0
    wait_s: float = 0.0
    wall_s: float = 0.0
    stuck: bool = False


def simulate(
    admission: Admission,
    depth: PipelineDepth,
    *,
    duration: Callable[[int], float],
    fate: Callable[[int], str | None] = lambda _: None,
    train_s: Callable[[int], float] = lambda _: 1.0,
    publish_s: Callable[[int], float] = lambda _: 0.0,
    slots: int = 10**9,
    pauses: Callable[[int], float] = lambda _: 0.0,
    weights: VirtualWeights | None = None,
    first_step: int = 0,
) -> Outcome:
    """`duration(group)` seconds of rollout on one of `slots` slots; `fate(group)`: a reason to drop it when it is done;
    `train_s(step)`; `publish_s(step)` after it; `pauses(version)`: no rollout finishes for so long after a publication. Without
    `weights` every step is published, and served by all engines at once."""
    outcome = Outcome()
    weights = weights or VirtualWeights(admission, depth)
    now, tie = 0.0, itertools.count()
    events: list[tuple[float, int, str, int]] = []
    waiting: list[int] = []
    running = 0
    step, leased, asked, complete_since, leased_at = first_step, (), 0.0, None, None
    started_under = {}
    resume_at = 0.0

    def push(delay: float, kind: str, value: int) -> None:
        heapq.heappush(events, (now + delay, next(tie), kind, value))

    while step < admission.max_steps:
        served = admission.version
        for event in weights.look():
            push(*event)
        if admission.version > served:
            resume_at = now + pauses(admission.version)
        while admission.may_start(depth.depth):
            ticket = admission.start()
            started_under[ticket.group_id] = ticket.start_version
            waiting.append(ticket.group_id)
            admission.check()
        while waiting and running < slots:
            group = waiting.pop(0)
            if group in admission.live:
                running += 1
                push(max(0.0, resume_at - now) + duration(group), "finished", group)
        ready = sum(t.state is GroupState.BUFFERED for t in admission.live.values() if t.group_id not in leased)
        complete_since = (complete_since if complete_since is not None else now) if ready >= admission.batch_groups else None
        if not leased:
            selection = admission.select(step)
            for group, reason in selection.drop.items():
                admission.drop(group, reason)
                admission.check()
            if selection.take:
                replays = sum(i not in admission.live for i in selection.take)
                if leased_at is not None:
                    slack = max(0.0, asked - complete_since) if complete_since is not None else 0.0
                    depth.observe(now - asked, asked - leased_at, slack, replays / len(selection.take))
                outcome.wait_s += now - asked
                outcome.lags += [step - started_under[i] for i in selection.take]
                outcome.trained_ids += selection.take
                outcome.trained_by_step.append(list(selection.take))
                outcome.replays += replays
                leased, leased_at, complete_since = selection.take, now, None
                admission.replay.lease(leased)
                push(train_s(step), "trained", step)
                continue
            if selection.drop:
                continue
        if not events:
            outcome.stuck = True
            break
        now, _, kind, value = heapq.heappop(events)
        if kind == "finished":
            running -= 1
            weights.group_ended(value)
            if value in admission.live:
                reason = fate(value)
                if reason is None:
                    admission.complete(value)
                else:
                    admission.drop(value, reason)
        elif kind == "trained":
            admission.train(leased)
            leased, step, asked = (), value + 1, now
            if weights.steps.publishes(value + 1):
                push(publish_s(value), "published", value + 1)
        elif kind == "published":
            weights.trained(value)
        else:
            getattr(weights, kind)(value)
        admission.check()
    outcome.wall_s = now
    return outcome
