"""Workers that the fault tests name in their YAML (`worker_cls`)."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

from roll.data.sample import Sample
from roll.pipeline.base_worker import TrainWorker
from roll.pipeline.rlvr.rewards.reward_worker import RewardWorker


class EvenRewardWorker(RewardWorker):
    """Reward 1 for a response of even digit sum. Takes its time, differently for every sample, as a remote judge would."""

    async def grade(self, sample: Sample) -> float:
        await asyncio.sleep(random.Random(f"{sample.prompt.uid}/{sample.index}").uniform(0.0, 0.03))
        return float(sum(int(c) for c in sample.response_text if c.isdigit()) % 2 == 0)


class StuckInSave(TrainWorker):
    """Stops for good in the middle of saving step 6: the model is written, the optimiser is not."""

    def save(self, directory: str) -> None:
        super().save(directory)
        if ".step-6." in directory and not (Path(os.environ["FAULTS"]) / "released").exists():
            (Path(directory) / "optimizer.safetensors").unlink()
            (Path(os.environ["FAULTS"]) / "half-written").touch()
            os.read(os.pipe()[0], 1)
