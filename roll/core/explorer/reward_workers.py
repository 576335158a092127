"""The reward workers of all domains, from the driver's side."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from roll.core.data.sample import Sample
from roll.core.distributed.clock import monotonic
from roll.core.distributed.cluster import Cluster
from roll.core.errors import Replaced
from roll.core.explorer.replaced_workers import ReplacedWorkers
from roll.core.groups.changes import Changes
from roll.core.record.ledger import LaneState, Ledger
from roll.core.rewards.worker import RewardResult

ATTEMPTS = 2
"""Attempts at samples whose worker dies: the samples may be the cause."""

SAID = frozenset(10**power for power in range(12))
"""Numbers of failures of a kind at which they are logged: the first, and then fewer and fewer."""

MOST_KINDS, OTHERS = 20, "other messages"
"""Number of messages that are told apart. A judge may put the number of a request into each, so later ones share one kind."""

logger = logging.getLogger(__name__)


class Rewards:
    """A sample goes to the workers of its prompt's domain, in turn. If one dies over it, its successor is asked again, or another
    where that takes long; if that dies, too, the samples have no reward."""

    def __init__(
        self, clusters: Mapping[str, Cluster], changes: Changes, ledger: Ledger, success_at: Mapping[str, float]
    ) -> None:
        """`changes` is notified when a worker was replaced. `ledger`: gets the seconds in which each domain's workers judge, as
        `rewards.<domain>`. `success_at`: the judgement from which on a response is a success, by domain."""
        self._workers = {domain: ReplacedWorkers(cluster, changes) for domain, cluster in clusters.items()}
        self._ledger = ledger
        self.success_at = success_at
        self._calls = Counter(dict.fromkeys(clusters, 0))
        for domain in clusters:
            self._account(domain, 0)
        self._turns: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        """Failures by "domain: reason". A failure is never a reward."""
        self.dropped: Counter[str] = Counter()
        """Samples left out of their group because of a failure, by domain."""

    @property
    def deaths(self) -> int:
        """Returns the number of replaced workers."""
        return sum(workers.cluster.restarts for workers in self._workers.values())

    async def fill(self, samples: Sequence[Sample], as_judged: bool = False, judged_s: list[float] | None = None) -> str | None:
        """Sets every sample's reward; returns the reason if that failed for any of them. All samples are of one prompt.
        `as_judged`: without additions of training. `judged_s`: receives the seconds of each sample."""
        domain = samples[0].prompt.domain
        self._account(domain, +1)
        try:
            results = await self._results(domain, samples, as_judged)
        finally:
            self._account(domain, -1)
        if judged_s is not None:
            judged_s += [round(result.seconds, 4) for result in results]
        failure = None
        for sample, result in zip(samples, results, strict=True):
            sample.reward, sample.reward_parts, sample.success_at = result.value, result.parts, self.success_at[domain]
            if result.error is not None:
                failure = result.error
                self._count(domain, result.error)
        return failure

    def _count(self, domain: str, error: str) -> None:
        first, _, _ = error.partition("\n")
        kind = f"{domain}: {first[:80]}"
        if kind not in self.errors and len(self.errors) >= MOST_KINDS:
            kind = f"{domain}: {OTHERS}"
        self.errors[kind] += 1
        if (count := self.errors[kind]) in SAID:
            times = f", {count:,} times by now" if count > 1 else ""
            logger.warning("a reward of domain %s failed%s: %s", domain, times, " ".join(error.split()))

    def _account(self, domain: str, calls: int) -> None:
        self._calls[domain] += calls
        state = LaneState.PROCESSING if self._calls[domain] else LaneState.WAITING_INPUT
        self._ledger.enter(f"rewards.{domain}", state.value, monotonic())

    async def _results(self, domain: str, samples: Sequence[Sample], as_judged: bool) -> list[RewardResult]:
        workers = self._workers[domain]
        self._turns[domain] += 1
        count = len(workers.cluster)
        for _ in range(ATTEMPTS):
            rank = min(range(count), key=lambda rank: (workers.replaces(rank), (rank - self._turns[domain]) % count))
            try:
                results: list[RewardResult] = await workers.call(rank, "compute_rewards", samples, as_judged)
                return results
            except Replaced as lost:
                death = str(lost)
        return [RewardResult(error=death)] * len(samples)
