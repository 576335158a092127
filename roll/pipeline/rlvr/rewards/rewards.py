"""The reward workers of all domains, from the driver's side."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from roll.configs.rlvr import RLVRConfig
from roll.data.sample import Sample
from roll.distributed.backend import Backend, WorkerSpec
from roll.distributed.cluster import Cluster
from roll.distributed.devices import Inventory, Placement, place_on_cpus
from roll.pipeline.rlvr.rewards.reward_host import RewardHost
from roll.pipeline.roles import judge_specs

logger = logging.getLogger(__name__)


def reward_specs(
    domain: str, config: RLVRConfig, longest_response: int, inventory: Inventory, backend: Backend
) -> list[WorkerSpec]:
    """On CPUs, or one with each engine of a judge."""
    reward = config.rewards[domain]
    engines: list[tuple[Placement, dict[str, Any] | None]]
    if reward.judge is None:
        engines = [(placement, None) for placement in place_on_cpus(reward.world_size, inventory)]
    else:
        engines = [*judge_specs(config, reward.judge, reward.max_concurrency, inventory, backend)]
    specs = []
    for placement, engine in engines:
        of_worker = asdict(reward) | {"engine": engine}
        kwargs = {"config": of_worker, "shaping": reward.shaping, "longest_response": longest_response}
        path = f"{RewardHost.__module__}.{RewardHost.__name__}"
        specs.append(WorkerSpec(f"rewards.{domain}-{placement.rank}", path, placement, kwargs))
    return specs


class Rewards:
    """A sample goes to the workers of its prompt's domain, in turn."""

    def __init__(self, clusters: Mapping[str, Cluster]) -> None:
        self._clusters = clusters
        self._turns: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        """Failures by "domain: reason". A failure is never a reward."""
        self.dropped: Counter[str] = Counter()
        """Samples that were left out of their group for it, by domain."""

    async def fill(self, samples: Sequence[Sample], as_judged: bool = False) -> str | None:
        """Sets every sample's reward; returns the reason if that failed for any of them. All samples are of one prompt.
        `as_judged`: without what training adds."""
        domain = samples[0].prompt.domain
        cluster = self._clusters[domain]
        self._turns[domain] += 1
        results = await cluster.call(self._turns[domain] % len(cluster), "compute_rewards", samples, as_judged)
        failure = None
        for sample, result in zip(samples, results, strict=True):
            sample.reward, sample.reward_parts = result.value, result.parts
            if result.error is not None:
                failure = result.error
                kind = f"{domain}: {result.error.splitlines()[0][:80]}"
                if kind not in self.errors:
                    logger.warning("a reward of domain %s failed: %s", domain, result.error)
                self.errors[kind] += 1
        return failure
