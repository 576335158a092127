"""Stages that work on the same item at the same time, each on its own devices; those that share devices take turns."""

from __future__ import annotations

from roll.pipeline.flow import Flow
from roll.pipeline.stage import Channel, Closed, In, Stage


class SideBySide(Stage[In, In]):
    """Hands each item to all of its stages and goes on when all have returned it. They change the item in place, each something
    of its own, and devices are asked for in their order."""

    def __init__(self, name: str, flow: Flow, *stages: Stage[In, In]) -> None:
        super().__init__()
        self.name = name
        self._stages = stages
        for stage in stages:
            stage.inputs, stage.outputs = Channel(1), Channel(1)
            flow.chain(stage)

    async def process(self, item: In) -> In | None:
        for stage in self._stages:
            assert stage.inputs is not None
            await stage.inputs.put(item)
        try:
            for stage in self._stages:
                assert stage.outputs is not None
                await stage.outputs.get()
        except Closed:  # a stage has failed, and its error ends the flow
            return None
        return item

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            for stage in self._stages:
                assert stage.inputs is not None
                stage.inputs.close()
