"""What a run writes line by line: metrics.jsonl with the trackers beside it, groups.jsonl, samples.jsonl and alarms.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from roll.configs.derived import Derived
from roll.configs.ppo import PPOConfig
from roll.configs.redact import redact
from roll.record.group_log import GroupLog, SampleLog
from roll.record.journal import JournalFile, RotatedJournal, write_atomically
from roll.record.trackers import Status, make_trackers
from roll.record.training_warnings import ALARMS, Alarm


class Journals:
    def __init__(self, config: PPOConfig, derived: Derived, written: dict[str, Any], resumed: Mapping[str, Any] | None) -> None:
        """Opens them, and writes config.yaml. `written`, `resumed`: see `RunRecord`; what was written after the checkpoint is
        rolled back."""
        run_dir, at = Path(derived.run_dir), resumed or {}
        step, digests = at.get("step", 0), at.get("digests", {})
        self.groups = GroupLog(run_dir)
        self.samples = SampleLog(run_dir, config.rollout_log_per_step, config.seed, round(config.rollout_log_limit_gb * 1e9))
        logged = (step, at.get("metrics", 0), digests.get("metrics")) if resumed is not None else (-1, 0, None)
        # First: a tracker that cannot start ends this, and nothing is changed then.
        self.metrics = make_trackers(derived.trackers, run_dir, config.exp_name, written, config.tracker_kwargs, *logged)
        write_atomically(run_dir / "config.yaml", yaml.safe_dump(redact(written), sort_keys=False).encode())
        self.groups.rewind(at.get("groups", 0), digests.get("groups"))
        self.samples.journal.rewind(at.get("samples", 0), digests.get("samples"))
        self._alarms = JournalFile(run_dir / ALARMS) if config.alarms else None
        if self._alarms is not None:
            self._alarms.retain(lambda row: isinstance(row.get("step"), int) and row["step"] <= step)

    def state(self) -> dict[str, Any]:
        """Where they stand, for a checkpoint."""
        positions = {name: journal.position() for name, journal in self._wound_back.items()}
        return {**positions, "digests": {name: journal.digest() for name, journal in self._wound_back.items()}}

    def sync(self) -> None:
        """What was written before is on disk when this returns; a checkpoint is committed after it. On any thread."""
        for journal in self._wound_back.values():
            journal.sync()

    @property
    def _wound_back(self) -> dict[str, JournalFile | RotatedJournal]:
        return {"groups": self.groups.journal, "samples": self.samples.journal, "metrics": self.metrics.jsonl.journal}

    def alarm(self, alarm: Alarm) -> None:
        assert self._alarms is not None
        self._alarms.append(alarm._asdict())

    def close(self, status: Status) -> None:
        self.metrics.finish(status)
        self.groups.close()
        if self._alarms is not None:
            self._alarms.close()
        self.samples.close()
