"""`reward_watch`: tells, while a run runs, that its policy collapses, or earns reward by something else than right answers."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from statistics import fmean

from roll.core.configs.plain import JsonObject
from roll.core.configs.watching import AlarmAction
from roll.core.data.sample import SampleGroup
from roll.core.errors import Superseded
from roll.core.record.callbacks import Callback, MetricsRow, Summary
from roll.core.record.run_lock import RunLock
from roll.core.record.run_progress import RunProgress
from roll.plan.rules.warm_start_rules import ROWS
from roll.reports.exploits import Seen, Sign
from roll.reports.warnings import Warnings
from roll.reports.watched_rollouts import PATIENCE, Domain, read_audits, read_domains, rollouts_of, write_domains

SHOWN = 120
"""Characters of a response that is quoted."""
WAITING = 2_000
"""Groups and rows that may wait to be looked at; more are left out."""
END_S = 10.0
"""Limit of the wait for the last looks."""
ENTROPY, STEPS, TENTH = "actor/entropy", 10, 0.1
"""Steps that an entropy is the mean of, and the share of that of the beginning at which the policy tries nothing new."""
_HELD_OUT = re.compile(r"eval/(?P<set>.+)/all/avg@\d+")

logger = logging.getLogger(__name__)


class RewardWatch(Callback):
    """Compares rollouts with those of the beginning of the run, on a thread of its own."""

    def __init__(
        self, action: AlarmAction, warnings: Warnings, run_dir: Path, is_written: bool = False, lock: RunLock | None = None
    ) -> None:
        """`is_written`: the rollouts of the beginning are kept in the folder of the run, for one that is resumed. `lock`: that of
        the run."""
        self._action, self._warnings, self._run_dir, self._lock = action, warnings, run_dir, lock
        self._folder = run_dir if is_written else None
        self._audits: dict[str, dict[str, str]] = {}
        self._domains: dict[str, Domain] = {}
        self._known: dict[str, JsonObject] = {}
        self._best: dict[str, tuple[float, float]] = {}
        """Validation set -> success at its best, and the low end of its interval."""
        self._fallen: dict[str, int] = {}
        self._entropies: tuple[list[float], deque[float]] = ([], deque(maxlen=STEPS))
        """Those of the first steps, and the newest."""
        self._told: set[tuple[str, str]] = set()
        self._thread = ThreadPoolExecutor(1, "reward_watch")
        self._looks: deque[Future[None]] = deque()

    # -- on the run's thread ------------------------------------------------------------------------------------------------

    def on_run_begin(self, step: int, rows: Sequence[MetricsRow]) -> None:
        self._soon(self._begin, step, list(rows))

    def on_group(self, group: SampleGroup, reason: str | None) -> None:
        if group.prompt.domain != ROWS and (seen := rollouts_of(group)):  # nobody has sampled rows
            episodes = group.samples[0].trajectory is not None
            self._soon(self._look, group.prompt.domain, group.group_id, episodes, seen)

    def on_step(self, step: int, metrics: MetricsRow) -> None:
        if ENTROPY in metrics:
            self._soon(self._look_at_entropy, step, float(metrics[ENTROPY]))

    def on_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        self._soon(self._look_at_held_out, step, dict(metrics))

    def on_summary(self, summary: Summary, progress: RunProgress) -> None:
        if "status" in summary:
            wait(self._looks, END_S)
            self._heard()

    def on_run_end(self, summary: Summary) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _soon(self, look: Callable[..., None], *told: object) -> None:
        self._heard()
        if len(self._looks) < WAITING:
            with suppress(RuntimeError):  # the run is over
                self._looks.append(self._thread.submit(look, *told))

    def _heard(self) -> None:
        while self._looks and self._looks[0].done():
            if (error := self._looks.popleft().exception()) is not None:
                raise error

    # -- on its own -----------------------------------------------------------------------------------------------------------

    def _begin(self, step: int, rows: Sequence[MetricsRow]) -> None:
        self._audits = read_audits(self._run_dir)
        if not step:
            return
        self._domains, self._entropies = {}, ([], deque(maxlen=STEPS))
        self._known = {} if self._folder is None else dict(read_domains(self._folder))
        for row in rows:
            self._fell(row)
            if ENTROPY in row:
                self._note_entropy(float(row[ENTROPY]))

    def _look(self, name: str, group_id: int, episodes: bool, seen: list[Seen]) -> None:
        if (domain := self._domains.get(name)) is None:
            domain = self._domains[name] = Domain(episodes, self._audits.get(name, {}))
            with suppress(TypeError, KeyError):  # there is none of it
                domain.go_on(self._known[name])
        before = domain.beginning()
        for sign in domain.add(seen):
            self._tell(name, sign, f"by group {group_id}")
        if self._folder is not None and domain.beginning() != before:
            try:
                if self._lock is not None:
                    self._lock.check()
                write_domains(self._folder, self._domains)
            except (OSError, Superseded) as error:
                logger.warning("reward_watch: a resumed run will compare with its own beginning: %s", error)
                self._folder = None

    def _look_at_entropy(self, step: int, entropy: float) -> None:
        """A policy that tries nothing new, and has not learned the task."""
        self._note_entropy(entropy)
        first, newest = self._entropies
        before, now = fmean(first), fmean(newest)
        failing = [name for name, domain in self._domains.items() if domain.fails]
        if len(newest) == STEPS and now < TENTH * before and failing:
            said = f"entropy fell from {before:.3g} to {now:.3g} nats a token, and most rollouts fail, as at the beginning"
            self._tell(failing[0], Sign("entropy", said), f"step {step}")

    def _note_entropy(self, entropy: float) -> None:
        first, newest = self._entropies
        if len(first) < STEPS:
            first.append(entropy)
        newest.append(entropy)

    def _look_at_held_out(self, step: int, metrics: Mapping[str, float]) -> None:
        """Success on held-out prompts that is below its best by more than chance, while the reward has risen."""
        rising = [name for name, domain in self._domains.items() if domain.rises]
        for which, sentence in self._fell(metrics).items():
            if rising:
                self._tell(rising[0], Sign(f"held out {which}", f"{sentence} while the reward rises"), f"step {step}")

    def _fell(self, metrics: Mapping[str, float]) -> dict[str, str]:
        """Notes a validation; returns the sets whose success has been below its best for long enough, and a sentence on each."""
        said = {}
        for name, value in metrics.items():
            if (found := _HELD_OUT.fullmatch(name)) is None:
                continue
            which, (best, low) = found["set"], self._best.get(found["set"], (value, 0.0))
            if value >= best:
                self._best[which] = (value, metrics[f"{name}/low"])
            self._fallen[which] = self._fallen.get(which, 0) + 1 if metrics[f"{name}/high"] < low else 0
            if self._fallen[which] >= PATIENCE:
                said[which] = f"held-out success ({name}) fell from {best:.0%} to {value:.0%}"
        return said

    def _tell(self, domain: str, sign: Sign, when: str) -> None:
        if (domain, sign.name) in self._told:
            return
        self._told.add((domain, sign.name))
        shown = "".join(f"; group {each.group}: {' '.join(each.text.split())[:SHOWN]!r}" for each in sign.examples)
        line = f"reward_watch: {domain}, {when}: {sign.sentence}{shown}"
        self._warnings.add(f"{line} (samples.jsonl has the texts; roll env audit tries the reward)")
        if self._action == "stop":
            self.stop(line, "stopped")
