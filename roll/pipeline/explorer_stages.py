"""The explorer half of a run: prompts are admitted, generated, rewarded, filtered and put into the buffer, each group on its
own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

from roll.buffer.interface import Buffer
from roll.data.prompt_source import PromptSource
from roll.data.sample import Sample, SampleGroup
from roll.distributed.cluster import Cluster
from roll.pipeline.fates import Fates
from roll.pipeline.stage import Closed, Stage
from roll.rollout.explorer import Explorer, GroupCancelled
from roll.rollout.filters import GroupFilter
from roll.rollout.pipeline_depth import PipelineDepth
from roll.strategies.infer.interface import SamplingParams


class DataloaderStage(Stage[SampleGroup, SampleGroup]):
    """Takes the next prompt whenever admission lets a group start."""

    name = "dataloader"

    def __init__(self, source: PromptSource, fates: Fates, depth: PipelineDepth) -> None:
        super().__init__()
        self._source = source
        self._fates = fates
        self._depth = depth
        self._room = asyncio.Event()
        self._stopped = False
        fates.on_change.append(self._room.set)

    def stop(self) -> None:
        """No group starts any more."""
        self._stopped = True
        self._room.set()

    def waiting_reason(self) -> str:
        admission = self._fates.admission
        return f"{len(admission.live)} groups outstanding under version {admission.version}"

    async def receive(self) -> SampleGroup:
        while not self._fates.admission.may_start(self._depth.depth):
            if self._stopped:
                raise Closed
            self._room.clear()
            await self._room.wait()
        if self._stopped:
            raise Closed
        return self._fates.start(self._source.next())

    async def process(self, item: SampleGroup) -> SampleGroup:
        return item


class GenerateStage(Stage[SampleGroup, SampleGroup]):
    """The `n` responses of a group, by the engines."""

    name = "generate"
    role = "actor_infer"

    def __init__(self, explorer: Explorer, sampling: SamplingParams, n: int, lanes: int) -> None:
        super().__init__()
        self.lanes = lanes
        self._explorer = explorer
        self._sampling = sampling
        self._n = n

    async def process(self, item: SampleGroup) -> SampleGroup | None:
        try:
            item.samples = await self._explorer.rollout(group_key(item.group_id), item.prompt, self._n, self._sampling)
        except GroupCancelled:
            return None
        return item


def group_key(group_id: int) -> str:
    """The name under which the explorer knows a training group."""
    return f"g{group_id}"


class Rewards:
    """The reward workers of all domains. A sample goes to the workers of its prompt's domain, in turn."""

    def __init__(self, clusters: Mapping[str, Cluster]) -> None:
        self._clusters = clusters
        self._turns: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        """Failures by "domain: reason". A failure is never a reward."""

    async def fill(self, samples: list[Sample]) -> str | None:
        """Sets every sample's reward; returns the reason if that failed for any of them. All samples are of one prompt."""
        domain = samples[0].prompt.domain
        cluster = self._clusters[domain]
        self._turns[domain] += 1
        results = await cluster.call(self._turns[domain] % len(cluster), "compute_rewards", samples)
        failure = None
        for sample, result in zip(samples, results, strict=True):
            sample.reward = result.value
            if result.error is not None:
                failure = result.error
                self.errors[f"{domain}: {result.error.splitlines()[0][:80]}"] += 1
        return failure


class RewardStage(Stage[SampleGroup, SampleGroup]):
    """Verifiable rewards. A group that cannot be rewarded, even at the second attempt, is dropped with the reason."""

    name = "reward"
    role = "rewards"

    def __init__(self, rewards: Rewards, fates: Fates, lanes: int) -> None:
        super().__init__()
        self.lanes = lanes
        self._rewards = rewards
        self._fates = fates

    async def process(self, item: SampleGroup) -> SampleGroup | None:
        failure = await self._rewards.fill(item.samples)
        if failure is not None:
            failure = await self._rewards.fill(item.samples)
        if failure is None:
            return item
        if self._fates.is_live(item.group_id):
            self._fates.drop(item.group_id, "reward_error")
        return None


class RolloutStage(Stage[SampleGroup, None]):
    """Filters finished groups; those worth training go to the buffer."""

    name = "rollout"

    def __init__(self, filters: Mapping[str, GroupFilter], fates: Fates, buffer: Buffer) -> None:
        """`filters`: by domain."""
        super().__init__()
        self._filters = filters
        self._fates = fates
        self._buffer = buffer

    async def process(self, item: SampleGroup) -> None:
        if not self._fates.is_live(item.group_id):
            return
        group_filter = self._filters.get(item.prompt.domain)
        reason = group_filter(item.rewards) if group_filter else None
        if reason is not None:
            self._fates.drop(item.group_id, reason)
        else:
            await self._buffer.put(item)
            self._fates.changed()
