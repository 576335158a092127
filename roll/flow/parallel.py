"""Stages that work on the same item at the same time, each on its own devices; those that share devices take turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from roll.errors import Closed
from roll.flow.stage import Channel, In, Stage


class Parallel(Stage[In, In]):
    """Hands each item to all of its stages and goes on when all have returned it. They change the item in place, each something
    of its own, and devices are asked for in their order."""

    def __init__(self, name: str, *stages: Stage[In, In]) -> None:
        super().__init__(name)
        self.stages = stages
        for stage in stages:
            stage.inputs, stage.outputs = Channel(1), Channel(1)

    async def process(self, item: In) -> In | None:
        for stage in self.stages:
            assert stage.inputs is not None
            await stage.inputs.put(item)
        try:
            for stage in self.stages:
                assert stage.outputs is not None
                await stage.outputs.get()
        except Closed:  # a stage has failed, and its error ends the flow
            return None
        return item

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            for stage in self.stages:
                assert stage.inputs is not None
                stage.inputs.close()


def parallel(name: str, stages: Sequence[Stage[In, In] | Literal[False]]) -> list[Stage[In, In]]:
    """The stages as one step of a half: empty without stages, the stage itself if it is alone. False stands for a stage that is
    not needed."""
    needed = [stage for stage in stages if stage]
    return needed if len(needed) <= 1 else [Parallel(name, *needed)]
