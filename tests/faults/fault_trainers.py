"""Trainers that the fault tests name in their YAML (`worker_cls`). Apart from the rewards, whose processes need no torch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fault_workers import hang

from roll.core.workers.workers import TrainWorker


class StuckInSave(TrainWorker):
    """Stops in the middle of writing the checkpoint of step 6: the model is written, the optimiser is not."""

    async def write(self, directory: str) -> list[str]:
        written = await super().write(directory)
        if ".step-6." in directory:
            (Path(directory) / "optimizer.safetensors").unlink()
            await asyncio.to_thread(hang, "half-written")
        return written


class SlowDisk(TrainWorker):
    """Does not begin to write the checkpoint of step 2 before the test says so."""

    async def write(self, directory: str) -> list[str]:
        if ".step-2." in directory:
            await asyncio.to_thread(hang, "writing")
        return await super().write(directory)


class StuckInStep(TrainWorker):
    """Stops in the middle of step 3."""

    calls = 0

    def train(self, batches: Sequence[Any], *args: Any) -> list[dict[str, float]]:
        self.calls += 1
        if self.calls == 3:
            hang("stuck")
        return super().train(batches, *args)


class StuckInEnd(TrainWorker):
    """Stops when all steps are done, before the results are written."""

    def close(self) -> None:
        hang("ended")


class SlowToStart(TrainWorker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        hang("starting")
        super().__init__(*args, **kwargs)


class CannotStart(TrainWorker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise KeyError("no such\nthing")
