"""Line-by-line output of a run: metrics.jsonl, groups.jsonl and samples.jsonl."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import yaml

from roll.core.configs.derived import Derived
from roll.core.configs.dotted_path import import_object
from roll.core.configs.plain import JsonMapping, JsonObject
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.redact import redact
from roll.core.record.batch_log import BATCHES, WRITTEN, BatchLog
from roll.core.record.group_log import GroupLog, SampleLog
from roll.core.record.journal import JournalFile, RotatedJournal, check_prefix, journal_parts, write_atomically

logger = logging.getLogger(__name__)


class MetricsLog:
    """`metrics.jsonl`: `{"step": 3, "<metric>": value, ...}` a line, on disk as soon as it is logged. A step may have several."""

    def __init__(self, run_dir: Path) -> None:
        self.journal = JournalFile(run_dir / "metrics.jsonl")

    def log(self, step: int, metrics: Mapping[str, object]) -> None:
        self.journal.append({"step": step, **metrics})

    def rewind(self, position: int, step: int, digest: str | None = None) -> int:
        """Back to the checkpoint of `step`, which recorded `position` and `digest`: keeps the lines of steps up to `step`, of
        which some (a validation that ended late) may stand behind the position. The others, and lines that are no metrics, go to
        `metrics.rolled-back.jsonl`. Returns their number. Lines that were lost or changed cost the run nothing but a warning."""
        try:
            check_prefix(self.journal.path, position, digest)
        except ValueError as error:
            logger.warning("%s; the run goes on, it needs none of them", error)
        return self.journal.retain(lambda row: isinstance(row.get("step"), int) and row["step"] <= step)


class Journals:
    def __init__(self, config: PPOConfig, derived: Derived, written: JsonObject, resumed: JsonMapping | None) -> None:
        """Opens the journals and writes config.yaml. `written`, `resumed`: see `RunRecord`; rows written after the checkpoint are
        rolled back."""
        run_dir, at = Path(derived.run_dir), resumed or {}
        step, digests = at.get("step", 0), at.get("digests", {})
        self.groups = GroupLog(run_dir)
        logged, most_bytes = config.rollout_log_per_step, round(config.rollout_log_limit_gb * 1e9)
        self.samples = SampleLog(run_dir, logged, config.seed, most_bytes)
        self.batches = BatchLog()
        records = logged == "all" and config.trains and config.mode != "replay" and not config.from_rows
        if records or journal_parts(run_dir / BATCHES):
            self.batches = import_object(WRITTEN)(run_dir, records, most_bytes)
        self.metrics = MetricsLog(run_dir)
        self.metrics.rewind(at.get("metrics", 0), step if resumed is not None else -1, digests.get("metrics"))
        write_atomically(run_dir / "config.yaml", yaml.safe_dump(redact(written), sort_keys=False).encode())
        self.groups.rewind(at.get("groups", 0), digests.get("groups"))
        self.samples.rewind(at.get("samples", 0), step if resumed is not None else -1, digests.get("samples"))
        if self.batches.journal is not None:
            self.batches.journal.rewind(at.get("batches", 0), digests.get("batches"))
        self.batches.begun(step)

    def state(self) -> JsonObject:
        """Returns the positions of the journals, for a checkpoint."""
        positions = {name: journal.position() for name, journal in self._wound_back.items()}
        return {**positions, "digests": {name: journal.digest() for name, journal in self._wound_back.items()}}

    def sync(self) -> None:
        """Syncs all rows written so far to disk; a checkpoint is committed after it. May be called on any thread."""
        for journal in self._wound_back.values():
            journal.sync()

    @property
    def _wound_back(self) -> dict[str, JournalFile | RotatedJournal]:
        found: dict[str, JournalFile | RotatedJournal] = {"groups": self.groups.journal, "metrics": self.metrics.journal}
        found |= {"samples": self.samples.journal}
        return found if self.batches.journal is None else found | {"batches": self.batches.journal}

    def close(self) -> None:
        self.metrics.journal.close()
        self.groups.close()
        self.samples.close()
        if self.batches.journal is not None:
            self.batches.journal.close()
