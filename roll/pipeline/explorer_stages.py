"""The explorer half of a run: groups are admitted, rolled out, filtered and put into the buffer, each on its own. What lies
between the two stages of this file, the rollout itself, is the pipeline's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from roll.buffer.interface import Buffer
from roll.data.sample import SampleGroup
from roll.pipeline.fates import Fates
from roll.pipeline.preparation import Source
from roll.pipeline.stage import Closed, Stage
from roll.pipeline.validation import Evaluation
from roll.rollout.filters import GroupFilter
from roll.rollout.pipeline_depth import PipelineDepth


class DataloaderStage(Stage[SampleGroup, SampleGroup]):
    """Takes the next task (a prompt, an environment) whenever admission lets a group start."""

    name = "dataloader"

    def __init__(self, source: Source, fates: Fates, depth: PipelineDepth) -> None:
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


class RolloutStage(Stage[SampleGroup, None]):
    """Filters finished groups; those worth training go to the buffer."""

    name = "rollout"

    def __init__(
        self, filters: Mapping[str, GroupFilter], fates: Fates, buffer: Buffer, ended: Callable[[SampleGroup], None]
    ) -> None:
        """`filters`: by domain. `ended` is told of every group that was rolled out, whatever becomes of it."""
        super().__init__()
        self._filters = filters
        self._fates = fates
        self._buffer = buffer
        self._ended = ended

    async def process(self, item: SampleGroup) -> None:
        self._ended(item)
        if not self._fates.is_live(item.group_id):
            return
        group_filter = self._filters.get(item.prompt.domain)
        reason = group_filter(item.outcomes) if group_filter else None
        if reason is not None:
            self._fates.drop(item.group_id, reason)
        else:
            await self._buffer.put(item)
            self._fates.changed()


@dataclass(frozen=True, slots=True)
class ExplorerHalf:
    """What a pipeline gives to the wiring: how its groups come about."""

    dataloader: DataloaderStage
    rollouts: tuple[Stage[SampleGroup, SampleGroup], ...]
    """From an admitted group to one with rewards."""
    cancel: Callable[[int], Coroutine[Any, Any, None]]
    """Gives up the rollouts of a group by its id, wherever they are."""
    evaluation: Evaluation
    engine_down: Callable[[int], None]
    """No request may go to the engine any more."""
    engine_up: Callable[[int], None]
    """The engine is there again, as a new worker of its cluster."""
    figures: Callable[[], dict[str, Any]]
    """Of the run so far, for summary.json."""
