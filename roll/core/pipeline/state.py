"""The state of a run between two steps, and the part of it that a checkpoint keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from roll.core.configs.plain import JsonObject
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.staleness import deepest_pipeline
from roll.core.distributed.clock import monotonic
from roll.core.groups.admission import Admission
from roll.core.groups.groups import Groups
from roll.core.groups.parts import GroupParts
from roll.core.groups.pipeline_depth import PipelineDepth
from roll.core.groups.progress import Progress
from roll.core.groups.schedule import StepSchedule
from roll.core.pipeline.prepared import Prepared
from roll.core.record.callbacks import Observers, Reports
from roll.core.record.checkpoint import CheckpointStore
from roll.core.record.group_log import GROUPS
from roll.core.record.run_identity import RunIdentity, identify, write_identity
from roll.core.record.run_record import RunRecord
from roll.core.trainer.advantages import Advantages


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
        first = {self.first_step} if prepared.continues else set()  # engines that restart begin with its weights
        retained = (config.max_ckpt_to_keep, prepared.lock, lambda old: {*first, *observers.spares([*{*old} - first])})
        self.checkpoints = CheckpointStore(prepared.checkpoints, *retained)
        if prepared.continues and prepared.database is not None and checkpoint is not None:
            prepared.database.mend(checkpoint, prepared.run_dir / GROUPS)
        self.record = RunRecord(
            config,
            prepared.derived,
            written=prepared.written,
            lock=prepared.lock,
            resumed=prepared.resumed_record,
            models=len(prepared.evaluated),
            before=before,
        )
        if prepared.continues:
            self.checkpoints.set_aside_after(self.first_step)
        self.note = observers.note
        self.reports = Reports(self.record, prepared.callbacks, observers, lambda: self.groups.stop())
        self.schedule = self._schedule()
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
        await self.groups.join(self._prepared.contract, None if self._config.only_explores else (self.first_step, self.known))
        self._joined = True
        self._learn_length()

    async def copy_database(self, file: Path, step: int) -> None:
        if self._prepared.database is not None:
            await self._prepared.database.copy(self.groups, file, step)

    def _schedule(self) -> StepSchedule:
        config = self._config
        every = 1 if config.only_evaluates else config.steps_between_validations
        return StepSchedule(
            last_step=config.max_steps,
            push_every=config.weight_push_interval,
            pull_every=config.weight_pull_interval,
            validate_every=every if self._prepared.validation else None,
            save_every=config.save_steps,
            validated=frozenset(each.step for each in self.record.validation),
        )

    def _new_groups(self) -> Groups:
        config, source, database = self._config, self._prepared.source, self._prepared.database
        journal, trace = self.record.journals.groups, self.record.files.trace
        admission, depth = new_admission(config, self.first_step), _depth(config)
        progress = Progress(config.groups_per_step, config.max_dropped_batches)
        parts = GroupParts(admission, depth, source, journal, trace, progress, monotonic)
        return self._prepared.groups(parts) if database is None else database.groups(parts, self.identity)

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

    def snapshot(self) -> JsonObject:
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
    if prepared.database is not None:
        identity = replace(identity, database=prepared.database.lasting())
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
        warm_steps=config.warm_steps,
    )


def _depth(config: PPOConfig) -> PipelineDepth:
    fixed = None if config.async_pipeline_depth == "auto" else config.async_pipeline_depth
    limit = deepest_pipeline(config.async_generation_ratio, config.weight_push_interval, config.max_reuse)
    target = config.staleness_tuning.target_ess if config.staleness_tuning.depth else None
    return PipelineDepth(limit, fixed, floor=config.weight_push_interval - 1, target_ess=target)
