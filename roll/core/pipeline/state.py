"""The state of a run between two steps, and the part of it that a checkpoint keeps."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll.core.configs.ppo import PPOConfig
from roll.core.configs.staleness import deepest_pipeline
from roll.core.distributed.clock import monotonic
from roll.core.errors import DatabaseFailed
from roll.core.groups.admission import Admission
from roll.core.groups.groups import Groups
from roll.core.groups.lookahead import PipelineDepth
from roll.core.groups.progress import Progress
from roll.core.groups.schedule import StepSchedule
from roll.core.pipeline.prepared import Prepared
from roll.core.record.callbacks import Observers, Reports
from roll.core.record.checkpoint import CheckpointStore
from roll.core.record.group_log import GROUPS
from roll.core.record.run_identity import RunIdentity, identify, write_identity
from roll.core.record.run_record import RunRecord
from roll.core.trainer.advantages import Advantages

if TYPE_CHECKING:
    from roll.topologies.sql.groups import SqlGroups

logger = logging.getLogger(__name__)


class RunState:
    lost = ""
    """Reason why a trained step has no checkpoint."""
    interrupted = False
    """True if a signal ends the run."""

    def __init__(
        self,
        config: PPOConfig,
        prepared: Prepared,
        advantages: Advantages,
        observers: Observers,
        before: RunRecord | None = None,
    ) -> None:
        """Starts from the checkpoint, if there is one. `before`: see `RunRecord`."""
        self._config, self._prepared, checkpoint = config, prepared, prepared.checkpoint
        self.identity = _identity(config, prepared)
        self.first_step = self.saved_step = prepared.first_version
        spared = self.first_step if prepared.continues else None
        self.checkpoints = CheckpointStore(prepared.checkpoints, config.max_ckpt_to_keep, spared, prepared.lock)
        if prepared.continues:
            self._mend_database()
        self.record = RunRecord(
            config,
            prepared.derived,
            written=prepared.written,
            lock=prepared.lock,
            resumed=prepared.resumed_record,
            models=len(prepared.benched),
            before=before,
        )
        if prepared.continues:
            self.checkpoints.set_aside_after(self.first_step)
        self.note = observers.note
        self.reports = Reports(self.record, prepared.callbacks, observers, lambda: self.groups.stop())
        self.schedule = StepSchedule(
            last_step=config.max_steps,
            push_every=config.weight_push_interval,
            pull_every=config.weight_pull_interval,
            validate_every=(1 if config.only_evaluates else config.steps_between_validations) if prepared.validation else None,
            save_every=config.save_steps,
            validated=frozenset(each.step for each in self.record.validation),
        )
        self.engines_are_stale = self._joined = False
        """True if running engines serve a version that was taken back."""
        self.groups = self._new_groups()
        self.advantages = advantages
        if checkpoint is not None:
            self.groups.restore(checkpoint.state, checkpoint.buffer)
            self.advantages.restore(checkpoint.state["advantages"])

    @property
    def ends_early(self) -> bool:
        """True if the run can go on later from its end: it leaves finished groups in its last checkpoint."""
        return self.interrupted or self.reports.stop_request is not None

    @property
    def stopped_in_order(self) -> bool:
        """True if a callback ends the run, and nothing else failed."""
        _, status = self.reports.stop_request or ("", "stopped")
        return status == "finished" and not self.interrupted

    @property
    def shared_groups(self) -> SqlGroups:
        """Returns the groups of a run of several processes."""
        from roll.topologies.sql.groups import SqlGroups

        assert isinstance(self.groups, SqlGroups), "the rules of `mode` give such a run a database"
        return self.groups

    async def join(self) -> None:
        """Joins the run with this process, where it has several. Called again, it restarts as an explorer: versions that it
        served were taken back. Raises `ContractError`."""
        self.engines_are_stale = self.engines_are_stale or self._joined
        if self._joined:
            before, self.groups = self.groups, self._new_groups()
            await before.leave()
            if before.stop_asked:  # that a trainer failed, which has come back, is no reason
                self.groups.stop(before.hurried)
        checkpoint = self._prepared.checkpoint
        self.known = checkpoint.state.get("database", {}).get("seq", 0) if checkpoint else 0
        trainer_at = None if self._config.only_explores else (self.first_step, self.known)
        await self.groups.join(self._config.contract(), trainer_at)
        self._joined = True
        self._learn_length()

    async def copy_database(self, file: Path, step: int) -> None:
        if (address := self._config.groups_address) is not None:
            from roll.topologies.sql.copying import write_copy, write_none

            oldest = self.groups.admission.replay.oldest_after(step)
            try:
                await self.shared_groups.beside(partial(write_copy, address, file, step, oldest))
            except DatabaseFailed as error:
                if not self.shared_groups.outage.over:
                    raise
                logger.warning("the checkpoint of step %d has no copy of the database: %s", step, error)
                await asyncio.to_thread(write_none, file)

    def _mend_database(self) -> None:
        """Mends the groups' database for the checkpoint. Raises `ValueError`, with nothing changed."""
        address, checkpoint = self._config.groups_address, self._prepared.checkpoint
        if address is not None and checkpoint is not None:
            from roll.topologies.shared_groups import mend_database

            mend_database(address, checkpoint, self._prepared.run_dir / GROUPS)

    def _new_groups(self) -> Groups:
        config, source = self._config, self._prepared.source
        journal, trace = self.record.journals.groups, self.record.files.trace
        admission, depth = new_admission(config, self.first_step), _depth(config)
        progress = Progress(config.groups_per_step, config.max_dropped_batches)
        if config.groups_address is None:
            return Groups(admission, depth, source, journal, trace, progress, monotonic)
        from roll.topologies.shared_groups import sql_groups

        parts = (admission, depth, source, journal, trace, progress, self.identity)
        return sql_groups(config, config.groups_address, *parts, self._prepared.database)

    def _learn_length(self) -> None:
        """The trainer decides how many steps the run has; an explorer learns it when that has joined."""
        if self._config.only_explores:
            self.schedule.last_step = self.record.max_steps = self.groups.admission.max_steps

    async def mirror_steps(self) -> None:
        """Runs as long as the run does: an explorer shows the steps of the trainer, which is another process."""
        admission, record = self.groups.admission, self.record

        def seen() -> tuple[int, int]:
            return max(record.step, admission.places // admission.batch_groups), admission.max_steps

        while True:
            await self.groups.until(lambda: seen() != (record.step, record.max_steps))
            record.step = seen()[0]
            self._learn_length()

    def snapshot(self) -> dict[str, Any]:
        return {
            **self.groups.state(),
            "run": self.identity.id,
            "record": self.record.state(),
            "advantages": self.advantages.state(),
        }


def _identity(config: PPOConfig, prepared: Prepared) -> RunIdentity:
    """Returns the identity of the run; its record holds it from now on."""
    folder = Path(config.run_dir if config.only_evaluates else config.shared_dir)
    identity = identify(folder, config.exp_name, prepared.identity.id if prepared.identity is not None else "")
    if (address := config.groups_address) is not None:
        from roll.topologies.shared_groups import lasting

        identity = replace(identity, database=lasting(address))
        write_identity(prepared.run_dir, identity)
    return identity


def new_admission(config: PPOConfig, version: int) -> Admission:
    return Admission(
        config.groups_per_step,
        config.async_generation_ratio,
        config.max_steps,
        policy=config.staleness_policy,
        extra_groups=config.redundant_groups,
        version=version,
        max_reuse=config.max_reuse if config.trains else 1,  # only the trainer knows which groups may be trained again
        order=config.groups_order,
    )


def _depth(config: PPOConfig) -> PipelineDepth:
    fixed = None if config.async_pipeline_depth == "auto" else config.async_pipeline_depth
    limit = deepest_pipeline(config.async_generation_ratio, config.weight_push_interval, config.max_reuse)
    target = config.staleness_tuning.target_ess if config.staleness_tuning.depth else None
    return PipelineDepth(limit, fixed, floor=config.weight_push_interval - 1, target_ess=target)
