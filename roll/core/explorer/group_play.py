"""Plays the episodes of a group side by side, until enough of them are finished.

A failed episode costs itself, or its group: a rule decides, which is applied and counted here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from roll.core.configs.agentic import EnvFailurePolicy
from roll.core.data.sample import Sample
from roll.core.errors import EpisodeFailed, Unanswered
from roll.core.workers.infer_interface import SamplingParams

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FailureRule:
    """Decides about a group after a failed episode."""

    retries: int
    """Retries of a failed episode."""
    may_shrink: bool
    """True if the group goes on without the episode."""


RULES: dict[EnvFailurePolicy, FailureRule] = {
    "retry": FailureRule(1, False),
    "drop_sample": FailureRule(0, True),
    "drop_group": FailureRule(0, False),
}
VALIDATION = FailureRule(1, True)
"""The rule of a validation: it counts the episodes that can be played, and reports how many cannot."""


@dataclass(slots=True)
class GroupOutcome:
    """The result of a group."""

    failures: Counter[str] = field(default_factory=Counter)
    """Failed episodes by kind, including retried ones."""
    reasons: dict[str, str] = field(default_factory=dict)
    """The newest of each kind."""
    causes: set[str] = field(default_factory=set)
    """Causes of the failed episodes; empty for one with an answer of the policy."""
    lost: int = 0
    """Episodes that failed for good."""
    aborted: int = 0
    """Redundant episodes that were ended because enough others had finished."""


async def play_group(
    play: Callable[[int, int], Awaitable[T]], started: int, needed: int, rule: FailureRule
) -> tuple[list[T], GroupOutcome]:
    """Plays `started` episodes side by side; the first `needed` to finish are the result, in the order of their numbers, and the
    rest is cancelled. Fewer come back where the rule lets the group shrink; none if it does not and too few are left.

    `play(episode, attempt)` plays one, or raises `EpisodeFailed`; any other exception ends the group and is the caller's."""
    outcome = GroupOutcome()
    finished: dict[int, T] = {}
    attempts = dict.fromkeys(range(started), 0)
    running = {asyncio.ensure_future(play(episode, 0)): episode for episode in range(started)}
    try:
        while running and len(finished) < needed:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda task: running[task]):
                episode = running.pop(task)
                try:
                    result = task.result()
                except EpisodeFailed as failure:
                    outcome.failures[failure.kind] += 1
                    outcome.reasons[failure.kind] = str(failure)
                    outcome.causes.add(failure.cause if isinstance(failure, Unanswered) else "")
                    if attempts[episode] < rule.retries:
                        attempts[episode] += 1
                        running[asyncio.ensure_future(play(episode, attempts[episode]))] = episode
                    else:
                        outcome.lost += 1
                    continue
                if len(finished) < needed:
                    finished[episode] = result
                else:
                    outcome.aborted += 1
            if not rule.may_shrink and started - outcome.lost < needed:
                return [], outcome
        outcome.aborted += len(running)
        return [finished[episode] for episode in sorted(finished)], outcome
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTask:
    """A group to play; plain values."""

    key: str
    """Unique over the run, replays included."""
    uid: str
    tag: str
    env_seed: int
    started: int
    """Episodes that are begun."""
    needed: int
    """Episodes that count: the first to finish."""
    sampling: SamplingParams
    version: int = 0
    """The group started under it."""
    priority: int = 1
    validation: bool = False


@dataclass(slots=True)
class GroupResult:
    samples: list[Sample]
    """Empty if the group could not be played, or was cancelled."""
    outcome: GroupOutcome = field(default_factory=GroupOutcome)
