"""One name for both kinds of run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roll.configs.agentic import AgenticConfig
from roll.configs.rlvr import RLVRConfig
from roll.pipeline.agentic.agentic_pipeline import AgenticPipeline
from roll.pipeline.callbacks import Callback
from roll.pipeline.own_stage import OwnStage
from roll.pipeline.rlvr.rlvr_pipeline import RLVRPipeline


class AsyncTrainingFlow:
    """`AsyncTrainingFlow(config).run()`: the pipeline that the configuration is for."""

    def __init__(
        self,
        config: RLVRConfig | AgenticConfig,
        *,
        local: bool = False,
        stages: Sequence[OwnStage] = (),
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.pipeline: RLVRPipeline | AgenticPipeline
        if isinstance(config, AgenticConfig):
            self.pipeline = AgenticPipeline(config, local=local, stages=stages, callbacks=callbacks)
        else:
            self.pipeline = RLVRPipeline(config, local=local, stages=stages, callbacks=callbacks)

    def run(self) -> dict[str, Any]:
        """As `Pipeline.run`."""
        return self.pipeline.run()
