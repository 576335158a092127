"""What an RLVR run knows between two steps, and what of it a checkpoint keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from roll.buffer.memory import MemoryBuffer
from roll.configs.loading import to_mapping
from roll.configs.rlvr import RLVRConfig
from roll.distributed.cluster import Cluster
from roll.pipeline.checkpoint import TRAINER, CheckpointStore
from roll.pipeline.fates import Fates
from roll.pipeline.rlvr.advantages import Advantages
from roll.pipeline.rlvr.preparation import Prepared
from roll.pipeline.run_record import RunRecord
from roll.rollout.admission import Admission
from roll.rollout.pipeline_depth import PipelineDepth


class RunState:
    def __init__(self, config: RLVRConfig, prepared: Prepared, clock: Callable[[], float]) -> None:
        """As the checkpoint left it, if there is one."""
        checkpoint = prepared.checkpoint
        self.first_step = self.saved_step = checkpoint.step if checkpoint else 0
        self.admission = Admission(
            config.rollout_batch_size,
            config.async_generation_ratio,
            config.max_steps,
            policy=config.staleness_policy,
            extra_groups=config.max_additional_running_prompts if config.is_use_additional_prompts else 0,
            version=self.first_step,
        )
        self.depth = PipelineDepth(
            config.async_generation_ratio, None if config.async_pipeline_depth == "auto" else config.async_pipeline_depth
        )
        self._checkpoints = CheckpointStore(prepared.checkpoints, config.max_ckpt_to_keep)
        if prepared.continues:
            self._checkpoints.set_aside_after(self.first_step)
        self.record = RunRecord(
            prepared.run_dir,
            to_mapping(config),
            exp_name=config.exp_name,
            trackers=prepared.derived.trackers,
            tracker_kwargs=config.tracker_kwargs,
            samples_per_step=config.rollout_log_per_step,
            staleness_bound=prepared.derived.staleness_bound,
            logging_steps=config.logging_steps,
            max_steps=config.max_steps,
            resumed=prepared.resumed_record,
            clock=clock,
        )
        self.fates = Fates(self.admission, self.record.groups)
        self.buffer = MemoryBuffer(self.admission, self.fates.drop, clock)
        self.advantages = Advantages(config)
        self._prompts = prepared.prompts
        if checkpoint is not None:
            self.admission.restore(checkpoint.state["admission"], self.buffer.restore(checkpoint.buffer))
            self.fates.restore(self.buffer.groups)
            self.advantages.restore(checkpoint.state["advantages"])

    async def save(self, trainers: Cluster) -> None:
        """A checkpoint of this very moment: the state is taken before the first await."""
        step = self.record.step
        state: dict[str, Any] = {
            "admission": self.admission.state(),
            "cursor": self._prompts.cursor(self.fates.in_flight_prompts()),
            "record": self.record.state(),
            "advantages": self.advantages.state(),
        }
        rows = self.buffer.snapshot()
        partial = self._checkpoints.begin(step)
        await trainers.call_all("save", str(partial / TRAINER))
        await asyncio.to_thread(self._checkpoints.commit, step, state, rows)
        self.saved_step = step
