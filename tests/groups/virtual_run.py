"""A whole run on a virtual clock: the real admission, selection and depth logic, with durations instead of work."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from virtual_weights import VirtualWeights

from roll.core.groups.admission import Admission
from roll.core.groups.pipeline_depth import PipelineDepth, StepTimes
from roll.core.groups.ticket import GroupState


@dataclass
class Outcome:
    lags: list[int] = field(default_factory=list)
    trained_ids: list[int] = field(default_factory=list)
    trained_by_step: list[list[int]] = field(default_factory=list)
    reuses: int = 0
    wait_s: float = 0.0
    wall_s: float = 0.0
    stuck: bool = False


def simulate(
    admission: Admission,
    depth: PipelineDepth,
    *,
    duration: Callable[[int], float],
    status: Callable[[int], str | None] = lambda _: None,
    train_s: Callable[[int], float] = lambda _: 1.0,
    score_s: Callable[[int], float] = lambda _: 0.0,
    ahead: bool = False,
    on_arrival: bool = False,
    publish_s: Callable[[int], float] = lambda _: 0.0,
    slots: int = 10**9,
    pauses: Callable[[int], float] = lambda _: 0.0,
    weights: VirtualWeights | None = None,
    first_step: int = 0,
) -> Outcome:
    """`duration(group)` seconds of rollout on one of `slots` slots; `status(group)`: a reason to drop it when it is done;
    `score_s(step)`, then `train_s(step)`; `ahead`: the next step is leased and scored while a step trains; `on_arrival`: a step
    takes its groups as they come (and trains them when it has all); `publish_s(step)` after it; `pauses(version)`: no rollout
    finishes for so long after a publication. Without `weights` every step is published, and served by all engines at once."""
    outcome = Outcome()
    weights = weights or VirtualWeights(admission, depth)
    now, tie = 0.0, itertools.count()
    events: list[tuple[float, int, str, int]] = []
    waiting: list[int] = []
    running = 0
    step = done = first_step
    asked, complete_since, done_at, step_s, scoring_until = 0.0, None, 0.0, 0.0, 0.0
    leased: dict[int, list[int]] = {}
    scored: dict[int, tuple[float, StepTimes]] = {}
    training = False
    reused: dict[int, int] = {}
    started_under = {group: ticket.start_version for group, ticket in admission.live.items()}
    resume_at = 0.0

    def push(delay: float, kind: str, value: int) -> None:
        heapq.heappush(events, (now + delay, next(tie), kind, value))

    while done < admission.max_steps:
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
        held = [group for groups in leased.values() for group in groups]
        lacking = admission.batch_groups - len(leased.get(step, ()))
        ready = sum(t.state is GroupState.BUFFERED for t in admission.live.values() if t.group_id not in held)
        complete_since = (complete_since if complete_since is not None else now) if ready >= lacking else None
        if step < admission.max_steps and step - done <= ahead:
            selection = admission.select(step, held, lacking if on_arrival else None)
            for group, reason in selection.drop.items():
                admission.drop(group, reason)
                admission.check()
            if selection.take:
                outcome.lags += [step - started_under[i] for i in selection.take]
                reused[step] = sum(i not in admission.live for i in selection.take)
                outcome.reuses += reused[step]
                leased.setdefault(step, []).extend(selection.take)
                admission.reuse.lease(selection.take)
                if len(leased[step]) == admission.batch_groups:
                    seconds, since = score_s(step), now if complete_since is None else complete_since
                    could = max(asked, scoring_until if ahead else 0.0)
                    scoring_until = max(now, scoring_until) + seconds
                    scored[step] = scoring_until, StepTimes(could, since, now, seconds if ahead else 0.0, 0.0)
                    push(scoring_until - now, "scored", step)
                    step, asked, complete_since = step + 1, now, None
            if selection.take or selection.drop:
                continue
        if not training and done in scored and scored[done][0] <= now:
            seen = scored.pop(done)[1]._replace(before_done=done_at)
            if step_s:
                depth.observe(seen.wait_s, step_s, seen.slack_s, reused[done] / admission.batch_groups)
            outcome.wait_s += max(0.0, seen.leased - max(seen.asked, done_at))
            training, began = True, max(seen.leased, done_at)
            push(train_s(done), "trained", done)
        if not events:
            outcome.stuck = True
            break
        now, _, kind, value = heapq.heappop(events)
        if kind == "finished":
            running -= 1
            weights.group_ended(value)
            if value in admission.live:
                reason = status(value)
                if reason is None:
                    admission.complete(value)
                else:
                    admission.drop(value, reason)
        elif kind == "trained":
            groups = leased.pop(value)
            admission.train(tuple(groups))
            outcome.trained_ids += groups
            outcome.trained_by_step.append(groups)
            training, done, done_at, step_s = False, value + 1, now, now - began
            asked = asked if ahead else now
            if weights.steps.publishes(value + 1):
                push(publish_s(value), "published", value + 1)
        elif kind == "scored":
            pass
        elif kind == "published":
            weights.trained(value)
        else:
            getattr(weights, kind)(value)
        admission.check()
    outcome.wall_s = now
    return outcome
