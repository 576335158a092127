"""Holds a step back until every rollout that may be ahead of it has come, so that its samples are as old as the bound allows.

How old samples are when they are trained otherwise depends on which half is the slower one: rollouts that wait for an engine
are sampled late, with newer weights than those that were there when they were admitted. With both stages, and
`async_pipeline_depth` at the ratio, each step is trained exactly `async_generation_ratio` versions after its samples were made
(the first ones less: there were no older versions), on any machine. For one process (`--local`) without filters: every group
that is rewarded is trained.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from roll import SampleGroup, Stage


class Complete(Stage[SampleGroup, SampleGroup]):
    """Stands after `reward`, and counts the groups."""

    groups: ClassVar[int] = 0
    news: ClassVar[asyncio.Condition] = asyncio.Condition()

    async def process(self, group: SampleGroup) -> SampleGroup:
        async with self.news:
            Complete.groups += 1
            self.news.notify_all()
        return group


class HeldBack(Stage[Any, Any]):
    """Stands after `lease`. `groups`: of a step, `ahead`: batches, `steps`: of the run."""

    def __init__(self, groups: int, ahead: float, steps: int) -> None:
        super().__init__()
        self._groups, self._ahead, self._steps = groups, ahead, steps

    async def process(self, step: Any) -> Any:
        begun = int(self._groups * min(step.number + 1 + self._ahead, self._steps))
        async with Complete.news:
            await Complete.news.wait_for(lambda: Complete.groups >= begun)
        return step


def overrides(groups: int, ahead: float, steps: int) -> list[str]:
    """Of the run."""
    complete = "{after: reward, name: complete, worker: held_back.Complete}"
    args = f"{{groups: {groups}, ahead: {ahead:g}, steps: {steps}}}"
    held = f"{{after: lease, name: held_back, worker: held_back.HeldBack, args: {args}}}"
    return [f"async_generation_ratio={ahead:g}", f"async_pipeline_depth={ahead:g}", f"flow={{stages: [{complete}, {held}]}}"]
