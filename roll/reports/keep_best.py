"""`keep_best`: the checkpoints with the best validations stay, `checkpoints/best` links to the best one, and best.json says why.

A validation may end after its checkpoint was written, or before: a checkpoint stays until its validation is known, and the link
follows when both are there.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path

from roll.core.configs.watching import KeepBestConfig
from roll.core.errors import Superseded
from roll.core.groups.schedule import StepSchedule
from roll.core.record.callbacks import MetricsRow, Summary
from roll.core.record.checkpoint import CheckpointStore
from roll.core.record.estimates import Validated
from roll.core.record.journal import write_atomically
from roll.core.record.run_lock import RunLock
from roll.core.record.run_progress import RunProgress
from roll.platform.checkpoint_readers import deletable
from roll.prompts.paths import BEST
from roll.reports.best_steps import Best, awaited, best_of, kept
from roll.reports.rows import OfRows

REASON = "best.json"

logger = logging.getLogger(__name__)


class Retention:
    """Decides which old checkpoints stay; called on any thread."""

    def __init__(self, root: Path, best: KeepBest | None) -> None:
        """`root`: the folder of the checkpoints."""
        self._root, self._best = root, best

    def spares(self, old: Sequence[int]) -> set[int]:
        """Returns the best ones, and those that another process reads. The others are deleted: nobody begins to read them."""
        best = self._best.spares(old) if self._best is not None else set[int]()
        folders = {self._root / f"step-{step}": step for step in old if step not in best}
        self._lock, gone = deletable(folders)
        return best | {step for folder, step in folders.items() if folder not in gone}


class KeepBest(OfRows):
    def __init__(self, rule: KeepBestConfig, schedule: StepSchedule, root: Path, newest: int, lock: RunLock | None) -> None:
        """`root`: the folder of the checkpoints, of which the `newest` stay, too. `lock`: that of the run."""
        self._rule, self._schedule, self._lock = rule, schedule, lock
        self._store = CheckpointStore(root, newest, lock, Retention(root, self).spares)
        self.clear()

    def clear(self) -> None:
        self._values: dict[int, float] = {}
        self._judged = frozenset[int]()

    def add(self, step: int, row: MetricsRow) -> None:
        """Other threads read meanwhile: nothing is changed in place."""
        if Validated.of_row({**row, "step": step}) is not None:
            self._judged |= {step}
        if (value := row.get(self._rule.metric)) is not None:
            self._values = {**self._values, step: float(value)}

    def spares(self, old: Sequence[int]) -> set[int]:
        best = kept(self._values, self._rule.mode, self._rule.count, self._store.steps())
        return {each.step for each in best} | awaited(filter(self._schedule.validates, old), self._judged)

    def on_run_begin(self, step: int, rows: Sequence[MetricsRow]) -> None:
        super().on_run_begin(step, rows)
        self._point()

    def on_validation(self, step: int, metrics: MetricsRow) -> None:
        self.add(step, metrics)
        self._point()

    def on_summary(self, summary: Summary, progress: RunProgress) -> None:
        best = self._point()
        summary["best"] = best.plain() if best is not None else None
        if "status" in summary and self._judged and not any(map(isfinite, self._values.values())):
            summary["warnings"] += [
                f"keep_best: no validation had {self._rule.metric} as a number: no checkpoint was kept for it"
            ]

    def on_run_end(self, summary: Summary) -> None:
        """The last validation may have been better than those that older checkpoints were kept for."""
        with suppress(OSError, Superseded):
            self._check_owner()
            self._store.prune()
            self._point()

    def _point(self) -> Best | None:
        """Lets link and file say what is best now."""
        rule = self._rule
        best = best_of(self._values, rule.metric, rule.mode, rule.count, self._store.steps())
        try:
            self._check_owner()
            self._write(best)
        except (OSError, Superseded) as error:
            logger.warning("%s could not be written: %s", self._store.root / BEST, error)
        return best

    def _write(self, best: Best | None) -> None:
        link, reason = self._store.root / BEST, self._store.root / REASON
        if best is None:
            link.unlink(missing_ok=True)
            reason.unlink(missing_ok=True)
            return
        text = json.dumps(best.plain(), indent=1).encode()
        if not reason.is_file() or reason.read_bytes() != text:
            write_atomically(reason, text)
        target = f"step-{best.step}"
        if not link.is_symlink() or os.readlink(link) != target:
            aside = link.with_name(f".{BEST}.partial")
            aside.unlink(missing_ok=True)
            aside.symlink_to(target)
            os.replace(aside, link)

    def _check_owner(self) -> None:
        if self._lock is not None:
            self._lock.check()
