"""What a run knows between two steps, and what of it a checkpoint keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roll.buffer.memory import MemoryBuffer
from roll.configs.loading import to_mapping
from roll.configs.ppo import PPOConfig
from roll.distributed.cluster import Cluster
from roll.pipeline.advantages import Advantages
from roll.pipeline.checkpoint import CRITIC, TRAINER, CheckpointStore
from roll.pipeline.fates import Fates
from roll.pipeline.preparation import Prepared
from roll.pipeline.run_record import RunRecord
from roll.rollout.admission import Admission
from roll.rollout.pipeline_depth import PipelineDepth


class RunState:
    def __init__(self, config: PPOConfig, prepared: Prepared, advantages: Advantages, clock: Callable[[], float]) -> None:
        """As the checkpoint left it, if there is one."""
        checkpoint = prepared.checkpoint
        self.first_step = self.saved_step = checkpoint.step if checkpoint else 0
        self.admission = Admission(
            config.groups_per_step,
            config.async_generation_ratio,
            config.max_steps,
            policy=config.staleness_policy,
            extra_groups=config.max_additional_running_prompts if config.is_use_additional_prompts else 0,
            version=self.first_step,
        )
        self.depth = PipelineDepth(
            config.async_generation_ratio,
            None if config.async_pipeline_depth == "auto" else config.async_pipeline_depth,
            floor=config.weight_push_interval - 1,
        )
        spared = self.first_step if prepared.continues else None
        self._checkpoints = CheckpointStore(prepared.checkpoints, config.max_ckpt_to_keep, spared, prepared.lock)
        self._begun: tuple[int, Path] | None = None
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
            lock=prepared.lock,
        )
        self.fates = Fates(self.admission, self.record.groups)
        self.buffer = MemoryBuffer(self.admission, self.fates.drop, clock)
        self.advantages = advantages
        self._source = prepared.source
        if checkpoint is not None:
            self.admission.restore(checkpoint.state["admission"], self.buffer.restore(checkpoint.buffer))
            self.fates.restore(self.buffer.groups)
            self.advantages.restore(checkpoint.state["advantages"])

    async def save_critic(self, critic: Cluster, step: int) -> None:
        """The critic's part of the checkpoint of `step`: what it is when `save` makes the rest."""
        await critic.call_all("save", str(self._begin(step) / CRITIC))

    async def save(self, trainers: Cluster) -> None:
        """A checkpoint of this very moment: the state is taken before the first await. A critic has been saved before."""
        step = self.record.step
        state: dict[str, Any] = {
            "admission": self.admission.state(),
            "cursor": self._source.cursor(self.fates.in_flight_prompts()),
            "record": self.record.state(),
            "advantages": self.advantages.state(),
        }
        rows = self.buffer.snapshot()
        partial = self._begin(step)
        await trainers.call_all("save", str(partial / TRAINER))
        await asyncio.to_thread(self._checkpoints.commit, step, state, rows)
        self.saved_step = step

    def _begin(self, step: int) -> Path:
        """The folder of a checkpoint that is being made, empty when it is first asked for."""
        if self._begun is None or self._begun[0] != step:
            self._begun = step, self._checkpoints.begin(step)
        return self._begun[1]
