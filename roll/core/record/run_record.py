"""The files that a run writes, and their contents."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from roll.core.configs.derived import Derived
from roll.core.configs.plain import JsonMapping, JsonObject, to_mapping
from roll.core.configs.ppo import PPOConfig
from roll.core.data.sample import Sample, SampleGroup
from roll.core.data.token_batch import TokenBatch
from roll.core.distributed.clock import monotonic
from roll.core.errors import Superseded
from roll.core.record.estimates import Validated
from roll.core.record.journal import read_rows
from roll.core.record.journals import Journals
from roll.core.record.ledger import BUSY, STAGE, LaneState, Ledger, StepSpeed
from roll.core.record.live_files import LiveFiles
from roll.core.record.memory_watch import MemoryWatch
from roll.core.record.off_policy import StalenessStats
from roll.core.record.run_lock import RunLock
from roll.core.record.run_progress import Places, RoleLine, RunProgress
from roll.core.record.trace import Span
from roll.core.record.validation import ValidationResult

logger = logging.getLogger(__name__)

WAITING = "waiting"
SOURCES = {"actor_train": "lease", "actor_infer": "admit"}
"""Roles -> the stage that brings them their work."""


class Counter(Protocol):
    def counts(self) -> dict[str, float]:
        """Running totals, for the metrics of each step."""


class RunRecord:
    """The folder `<output_dir>/<exp_name>`: config.yaml, the journals metrics.jsonl, samples.jsonl and groups.jsonl, and the
    `LiveFiles`.

    `written`: the configuration with paths as the user wrote them. `resumed`: the record's state in the checkpoint that the run
    goes on from; rows written after it are rolled back. `models`: how many a run evaluates that trains nothing. `before`: the
    record of the same run that this one takes over from, when its trainer restarts."""

    _counter: Counter | None = None
    _ledger: Ledger | None = None
    _speed: StepSpeed | None = None
    _places: Callable[[], Places] | None = None
    _run_began: float | None = None
    """Time at which the workers were up for the first time."""
    _started_s = 0.0
    """Seconds that the start took."""
    _inherited: JsonMapping | None = None
    """Totals of another run up to the checkpoint that this run began with."""
    samples = response_tokens = 0

    def __init__(
        self,
        config: PPOConfig,
        derived: Derived,
        *,
        written: JsonObject | None = None,
        lock: RunLock | None = None,
        resumed: JsonMapping | None = None,
        models: int = 0,
        before: RunRecord | None = None,
    ) -> None:
        self.run_dir = Path(derived.run_dir)
        self.max_steps, self._counted = models or config.max_steps, "model" if models else "step"
        self._made = self._began = monotonic()
        self.files = LiveFiles(self.run_dir, lock)
        self.staleness = StalenessStats(derived.staleness_bound)
        if resumed is not None:
            self.staleness.restore(resumed["staleness"])
            self._inherited = resumed.get("inherited")
        self.step = self._first_step = resumed["step"] if resumed is not None else 0
        self.journals = Journals(config, derived, written or to_mapping(config), resumed)
        self.memory = MemoryWatch()
        self._groups: JsonMapping = {}
        """The groups, as they were counted last."""
        self._roles: list[RoleLine] = []
        self.results: list[ValidationResult] = []
        """The validations of this process."""
        self.validation = [found for row in self.rows() if (found := Validated.of_row(row)) is not None]
        if before is not None:
            self._take_over(before)

    def rows(self) -> Iterator[JsonObject]:
        """Returns the rows of metrics.jsonl."""
        return read_rows(self.run_dir / "metrics.jsonl")

    @property
    def validated(self) -> set[int]:
        """The versions whose validation is recorded."""
        return {each.step for each in self.validation}

    def _take_over(self, before: RunRecord) -> None:
        """Takes over all totals since the beginning of the run. Training that is taken back was work all the same."""
        self._run_began, self._started_s, self.memory = before._run_began, before._started_s, before.memory
        self.samples, self.response_tokens = before.samples, before.response_tokens

    def begin(self, counter: Counter, ledger: Ledger, places: Callable[[], Places] | None = None) -> float:
        """Starts measuring the speed of the run once the workers are up; records the counts of `counter` and the working time of
        each stage. Returns the seconds that the start has taken."""
        now = self._began = monotonic()
        self._counter, self._ledger, self._places = counter, ledger, places
        self._speed = StepSpeed(ledger, now)
        if self._run_began is None:
            self._run_began, self._started_s = now, now - self._made
        return now - self._made

    @property
    def reached(self) -> str:
        """The last step that was trained, or model that was evaluated."""
        return f"{self._counted} {self._done}"

    @property
    def _done(self) -> int:
        return self.step if self._counted == "step" else len(self.results)

    def running_s(self) -> float:
        """Seconds since the run's first `begin`, or since the record was made."""
        return monotonic() - (self._began if self._run_began is None else self._run_began)

    def state(self) -> JsonObject:
        """Returns the positions of the journals, for a checkpoint."""
        state = {"step": self.step, **self.journals.state(), "staleness": self.staleness.state()}
        return state if self._inherited is None else state | {"inherited": self._inherited}

    def add_step(
        self, version: int, groups: tuple[SampleGroup, ...], batch: TokenBatch, metrics: Mapping[str, float]
    ) -> dict[str, float]:
        """Records a step on policy `version` that trained the groups, with tensors `batch`. Returns all its metrics."""
        step = version + 1
        lags = self.staleness.add_step(version, groups)
        self.journals.samples.record(step, groups, batch)
        tokens = sum(len(sample.response_ids) for group in groups for sample in group.samples)
        counts = self._counter.counts() if self._counter is not None else {}
        speed = self._speed.step(tokens, monotonic()) if self._speed is not None else {}
        row = {**metrics, **counts, **lags, **speed, "time/elapsed_s": self.running_s(), **self.memory.metrics()}
        self.journals.metrics.log(step, row)
        self.step = step
        now, seconds = monotonic(), metrics["time/step_s"]
        scored = {"reward": metrics.get("critic/score/mean"), "lag": lags["staleness/mean"]}
        facts = {"version": version, "groups": len(groups), "tokens": tokens, **scored}
        self.files.trace.add(Span("steps", f"step {step}", now - seconds, now, facts))
        self.samples += sum(len(group.samples) for group in groups)
        self.response_tokens += tokens
        return row

    def add_dropped(self, group: SampleGroup, reason: str) -> None:
        """Records a group that was rolled out and then dropped."""
        self.journals.samples.record_dropped(self.step + 1, group, reason)

    def add_validation(self, result: ValidationResult, sets: Sequence[Sequence[Sample]]) -> dict[str, float]:
        """Records a validation. `sets`: the samples of each validation set. Returns all its metrics."""
        self.results.append(result)
        found = Validated(result.version, result.accuracy, result.reward, result.errors, result.rollouts)
        self.validation.append(found)
        metrics = {**found.metrics(), "time/validation_s": result.seconds}
        if found.accuracy is None and result.sets:
            why = found.unjudged or "the environment does not say what a success is (custom_envs.<tag>.success_at)"
            logger.warning("step %d: there is no accuracy: %s", found.step, why)
        now, facts = monotonic(), {"accuracy": result.accuracy, "errors": result.errors}
        self.files.trace.add(Span("validations", f"version {result.version}", now - result.seconds, now, facts))
        metrics |= {f"val_correct/{tag}/mean": accuracy for tag, accuracy in result.by_tag.items()}
        metrics |= dict(result.estimates()) | result.more
        self.journals.metrics.log(result.version, metrics)
        for samples in sets:
            self.journals.samples.record_validation(result.version, samples)
        return metrics

    def add_own(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records metrics of callbacks: a row of its own, of the same step."""
        self.journals.metrics.log(step, metrics)

    def show(self, ledger: Ledger, roles: list[str], waits: Mapping[str, str], groups: JsonMapping) -> None:
        """`waits`: see `Changes`. A stage that waits in the middle of its work, or for its turn, has a line of its own."""
        now, names = monotonic(), ledger.names()
        lines = []
        for role in roles:
            if role in names:
                state, since, _ = ledger.current(role)
                reason = waits.get(SOURCES.get(role, ""), "") if state == LaneState.WAITING_INPUT.value else ""
                lines.append(RoleLine(role, state, reason, now - since))
        if (name := f"{STAGE}validate") in names and ledger.current(name)[0] == LaneState.PROCESSING.value:
            lines.append(RoleLine("validate", LaneState.PROCESSING.value, "", now - ledger.current(name)[1]))
        for stage, reason in waits.items():
            if stage not in SOURCES.values() and (name := STAGE + stage) in names:
                state, since, _ = ledger.current(name)
                ledger.enter(name, state, now, reason)  # its span in the trace says so, too
                lines.append(RoleLine(stage, WAITING, reason, now - since))
        self._roles, self._groups = lines, groups

    def progress(self) -> RunProgress:
        """Returns the progress; roles and groups are those that were shown last."""
        first, running = self._first_step if self._counted == "step" else 0, self.running_s()
        done = self._done - first
        return RunProgress(
            step=self._done,
            max_steps=self.max_steps,
            counted=self._counted,
            elapsed_s=running,
            eta_s=(monotonic() - self._began) / done * (self.max_steps - self._done) if done else None,
            staleness_bound=self.staleness.bound,
            tokens_per_s=self.response_tokens / running if running and self.response_tokens else None,
            roles=self._roles,
            groups=self._groups,
            generating_s=self._generating_s(),
            places=self._places() if self._places is not None else None,
        )

    def _generating_s(self) -> float:
        if self._ledger is None or "actor_infer" not in self._ledger.names():
            return 0.0
        return self._ledger.durations("actor_infer", monotonic()).get(BUSY, 0.0)

    def figures(self, wall_s: float) -> dict[str, object]:
        """Steps, validation, staleness and throughput, for summary.json."""
        seconds = max(wall_s, 1e-9)
        return {
            "steps": self.step,
            "started_s": self._started_s,
            "validation": [each._asdict() for each in self.validation],
            "memory": self.memory.figures(),
            "staleness": self.staleness.summary(),
            **({} if self._inherited is None else {"inherited": self._inherited}),
            "throughput": {"samples_per_s": self.samples / seconds, "response_tokens_per_s": self.response_tokens / seconds},
        }

    def roles(self) -> list[JsonObject]:
        """Returns the activity of each role when last shown, for summary.json while the run runs."""
        return [asdict(role) for role in self._roles]

    def interrupt(self) -> None:
        """Closes everything: another record goes on in the same folder, from a checkpoint."""
        self.journals.close()
        self.files.finish(None, self._ledger)

    def finish(self, summary: JsonObject, end: Callable[[], None]) -> None:
        """Writes the files for the last time, and closes everything. `end`: closes files opened elsewhere."""
        try:
            end()
            self.journals.close()
        except (OSError, RuntimeError) as error:  # the run has its own reason, which may be the same one
            summary.setdefault("warnings", []).append(f"not everything could be written at the end: {error}")
        with suppress(Superseded):
            self.files.finish(summary, self._ledger)
