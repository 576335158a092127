"""Progress of a run: ends a run that drops groups without end and trains no step, and says why. Pure."""

from __future__ import annotations

from collections import Counter

from roll.core.errors import NoProgress

UNJUDGED = ("reward_error", "rollout_failure", "environment_failure", "environment_worker_died")
"""Reasons to drop a group that no rule chose: it was not judged."""
EXPECTED = ("redundant", "surplus", "overtaken", "explorer_lost", "rolled_back")
"""Reasons that come with training, and say nothing about the group."""
FAILURES_IN_A_ROW = 100
"""Groups lost to failures, none finished between them, after which the run ends: it would only go round in circles."""
LOST, ROLLED_BACK = "explorer_lost", "rolled_back"
"""The process that rolled the group out is gone; versions that sampled it are."""


class Progress:
    def __init__(self, batch_groups: int, max_dropped_batches: int) -> None:
        """`max_dropped_batches`: batches of dropped groups between two steps that are too many; 0: never."""
        self._batch_groups = batch_groups
        self._max_batches = max_dropped_batches
        self._failures_in_a_row = 0
        self._dropped: Counter[str] = Counter()
        """Groups dropped since the last step, by reason."""
        self._details: dict[str, str] = {}
        """The last detail of each reason."""
        self._warn_at = batch_groups
        """Dropped groups since the last step at which to warn; it doubles, as a filter may drop at every step."""

    def finished(self) -> None:
        """Notes a group that can be trained."""
        self._failures_in_a_row = 0

    def trained(self) -> None:
        """Notes a trained step."""
        self._dropped.clear()

    def dropped(self, reason: str, detail: str = "") -> str | None:
        """Counts a dropped group. Returns a line for the user when they are many; raises `NoProgress` when they are too many."""
        if reason in EXPECTED:
            return None
        self._dropped[reason] += 1
        self._details[reason] = detail or self._details.get(reason, "")
        self._failures_in_a_row = self._failures_in_a_row + 1 if reason in UNJUDGED else 0
        if self._failures_in_a_row >= FAILURES_IN_A_ROW:
            raise NoProgress(f"{FAILURES_IN_A_ROW} groups in a row failed: {self._causes()}")
        total = self._dropped.total()
        if self._max_batches and total >= self._max_batches * self._batch_groups:
            limit = f"max_dropped_batches {self._max_batches} x {self._batch_groups} groups"
            raise NoProgress(f"{total} groups were dropped since the last step ({limit}): {self._causes()}")
        if total >= self._warn_at:
            self._warn_at = 2 * total
            return f"{total} groups were dropped since the last step: {self._causes()}"
        return None

    def _causes(self) -> str:
        total = self._dropped.total()
        (reason, count), *others = self._dropped.most_common()
        detail = f" (the last one: {self._details[reason]})" if self._details[reason] else ""
        more = "".join(f", {100 * n / total:.0f} % {name}" for name, n in others[:2])
        return f"{100 * count / total:.0f} % {reason}{detail}{more}"
