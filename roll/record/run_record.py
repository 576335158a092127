"""The files that a run writes, and what it displays while it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from roll.configs.derived import Derived
from roll.configs.loading import to_mapping
from roll.configs.ppo import PPOConfig
from roll.data.sample import Sample, SampleGroup
from roll.data.token_batch import TokenBatch
from roll.distributed.clock import monotonic
from roll.errors import Superseded
from roll.record.by_tag import ByTag
from roll.record.display import Display, RoleLine, RunSnapshot, duration
from roll.record.estimates import Validated
from roll.record.invalid_actions import InvalidActions
from roll.record.journal import read_rows
from roll.record.journals import Journals
from roll.record.ledger import STAGE, LaneState, Ledger, StepSpeed
from roll.record.live_files import LiveFiles
from roll.record.memory_watch import MemoryWatch
from roll.record.off_policy import StalenessStats
from roll.record.printed_summary import print_summary
from roll.record.run_lock import RunLock
from roll.record.trace import Span
from roll.record.trackers import Status
from roll.record.training_warnings import Alarms, TrainingWarnings
from roll.record.validation import ValidationResult
from roll.record.verdict import CUT, Curves, Verdict, verdict

logger = logging.getLogger(__name__)

WAITING = "waiting"
SOURCES = {"actor_train": "lease", "actor_infer": "admit"}
"""Roles -> the stage that brings them their work."""
REFRESH_S = 0.5
"""Time between two refreshes of the display."""


class Counter(Protocol):
    def counts(self) -> dict[str, float]:
        """Running totals, for the metrics of each step."""


class RunRecord:
    """The folder `<output_dir>/<exp_name>`: config.yaml, the journals metrics.jsonl, samples.jsonl and groups.jsonl, and the
    `LiveFiles`; and the display.

    `written`: the configuration with paths as the user wrote them. `resumed`: the record's state in the checkpoint that the run
    goes on from; what was written after it is rolled back. `warnings`: what was odd before the run began. `rules`: of a tag's
    environments. `models`: how many a run evaluates that trains nothing. `before`: the record of the same run that this one takes
    over from, when its trainer restarts."""

    _counter: Counter | None = None
    _ledger: Ledger | None = None
    _speed: StepSpeed | None = None
    _run_began: float | None = None
    """When the workers were up for the first time."""
    _started_s = 0.0
    """How long that took."""
    _reward: float | None = None
    _cut: float | None = None
    _lag: float | None = None
    _inherited: Mapping[str, Any] | None = None
    """What another run had done until the checkpoint that this one began with."""
    steady_steps, trained_s, idle_s = 0, 0.0, 0.0
    """The steps but the first, for which everything is slow; how long they took, and the waits for groups before them."""
    samples = response_tokens = 0

    def __init__(
        self,
        config: PPOConfig,
        derived: Derived,
        *,
        written: dict[str, Any] | None = None,
        lock: RunLock | None = None,
        resumed: Mapping[str, Any] | None = None,
        warnings: tuple[str, ...] = (),
        rules: Mapping[str, str] | None = None,
        models: int = 0,
        before: RunRecord | None = None,
    ) -> None:
        self.run_dir, self._trains = Path(derived.run_dir), config.trains
        self.max_steps, self._counted = models or config.max_steps, "model" if models else "step"
        self._made = self._began = monotonic()
        self.files = LiveFiles(self.run_dir, config.exp_name, derived.staleness_bound, lock)
        self.staleness = StalenessStats(derived.staleness_bound)
        if resumed is not None:
            self.staleness.restore(resumed["staleness"])
            self._inherited = resumed.get("inherited")
        self.step = self._first_step = resumed["step"] if resumed is not None else 0
        self.journals = Journals(config, derived, written or to_mapping(config), resumed)
        self._training_warnings, self._actions = TrainingWarnings(), InvalidActions(rules or {})
        self.alarms = Alarms(config.alarms if config.trains else ())
        self.memory = MemoryWatch()
        self.display = Display(logging_steps=config.logging_steps)
        self.curves, self._tags = Curves(), ByTag(derived.tag_to_domain)
        self._found = warnings
        self._counts: Mapping[str, Any] = {}
        """The groups, as they were counted last."""
        self._roles: list[RoleLine] = []
        self.results: list[ValidationResult] = []
        """The validations of this process."""
        self.validation: list[Validated] = []
        for row in read_rows(self.run_dir / "metrics.jsonl"):
            self._follow(row["step"], row)
            self.validation += [found] if (found := Validated.of_row(row)) is not None else []
        if before is not None:
            self._take_over(before)

    def _follow(self, step: int, row: Mapping[str, Any]) -> None:
        self.curves.add(step, row)
        self._tags.add(row)

    @property
    def validated(self) -> set[int]:
        """The versions whose validation is recorded."""
        return {each.step for each in self.validation}

    def _take_over(self, before: RunRecord) -> None:
        """What counts from the beginning of the run. What was trained and is taken back was work all the same."""
        self._run_began, self._started_s = before._run_began, before._started_s
        self._training_warnings, self.memory, self._actions = before._training_warnings, before.memory, before._actions
        self.samples, self.response_tokens = before.samples, before.response_tokens
        self.alarms.take_over(before.alarms, read_rows(self.run_dir / "metrics.jsonl"))

    def begin(self, counter: Counter, ledger: Ledger) -> None:
        """The workers are up: from here the speed of the run is measured, and what `counter` counts is recorded, and the time
        that each stage works."""
        now = self._began = monotonic()
        self.display.note(f"started in {duration(now - self._made)}")
        self._counter = counter
        self._ledger = ledger
        self._speed = StepSpeed(ledger, now)
        if self._run_began is None:
            self._run_began, self._started_s = now, now - self._made

    @property
    def reached(self) -> str:
        """The last step that was trained, or model that was evaluated."""
        return f"{self._counted} {self.step if self._counted == 'step' else len(self.results)}"

    def running_s(self) -> float:
        """Seconds since the run's first `begin`, or since the record was made."""
        return monotonic() - (self._began if self._run_began is None else self._run_began)

    def state(self) -> dict[str, Any]:
        """Where the journals stand, for a checkpoint."""
        state = {"step": self.step, **self.journals.state(), "staleness": self.staleness.state()}
        return state if self._inherited is None else state | {"inherited": self._inherited}

    def add_step(
        self, version: int, groups: tuple[SampleGroup, ...], batch: TokenBatch, metrics: Mapping[str, float]
    ) -> dict[str, float]:
        """A step on policy version `version` has trained the groups, whose tensors are `batch`. Returns all its metrics."""
        step = version + 1
        lags = self.staleness.add_step(version, groups)
        self.journals.samples.record(step, groups, batch)
        tokens = sum(len(sample.response_ids) for group in groups for sample in group.samples)
        counts = self._counter.counts() if self._counter is not None else {}
        speed = self._speed.step(tokens, monotonic()) if self._speed is not None else {}
        row = {**metrics, **counts, **lags, **speed, "time/elapsed_s": self.running_s(), **self.memory.metrics()}
        self.journals.metrics.log(step, row)
        self.step = step
        self._follow(step, row)
        self._warn(self._training_warnings.observe_step(self.step, {**metrics, **counts}))
        self._look_at_actions(groups)
        self._judge(self.step, row)
        if self.step > self._first_step + 1:
            self.steady_steps += 1
            self.trained_s += metrics["time/step_s"]
            self.idle_s += metrics["time/wait_for_batch_s"]
        self._reward, self._cut = metrics.get("critic/score/mean"), metrics.get(CUT)
        self._lag = lags["staleness/mean"]
        self._trace_step(metrics["time/step_s"], version=version, groups=len(groups), tokens=tokens)
        self.samples += sum(len(group.samples) for group in groups)
        self.response_tokens += tokens
        self.display.step(self._snapshot())
        return row

    def _judge(self, step: int, metrics: Mapping[str, Any]) -> None:
        for alarm in self.alarms.judge(step, metrics):
            self.journals.alarm(alarm)
            self.display.note(f"alarm: {alarm.text}{': the run stops' if alarm.action == 'stop' else ''}")

    def _trace_step(self, seconds: float, **facts: object) -> None:
        now, facts = monotonic(), {**facts, "reward": self._reward, "lag": self._lag}
        self.files.trace.add(Span("steps", f"step {self.step}", now - seconds, now, facts))

    def add_dropped(self, group: SampleGroup, reason: str) -> None:
        """A group was rolled out and then dropped."""
        self.journals.samples.record_dropped(self.step + 1, group, reason)
        self._look_at_actions([group])

    def _look_at_actions(self, groups: Iterable[SampleGroup]) -> None:
        found = self._actions.observe(groups)
        self._training_warnings.warnings += found
        self._warn(found)

    def _warn(self, lines: Sequence[str]) -> None:
        for line in lines:
            logger.warning(line)

    def add_validation(self, result: ValidationResult, sets: Sequence[Sequence[Sample]]) -> dict[str, float]:
        """`sets`: the samples of each validation set. Returns all its metrics."""
        self.results.append(result)
        for samples in sets:
            self.journals.samples.record_validation(result.version, samples)
        found = Validated(result.version, result.accuracy, result.reward, result.errors, result.rollouts)
        self.validation.append(found)
        metrics = {**found.metrics(), "time/validation_s": result.seconds}
        if found.accuracy is None:
            why = found.unjudged or "the environment does not say what a success is (custom_envs.<tag>.success_at)"
            logger.warning("step %d: there is no accuracy: %s", found.step, why)
        now, facts = monotonic(), {"accuracy": result.accuracy, "errors": result.errors}
        self.files.trace.add(Span("validations", f"version {result.version}", now - result.seconds, now, facts))
        metrics |= {f"val_correct/{tag}/mean": accuracy for tag, accuracy in result.by_tag.items()}
        metrics |= dict(result.estimates()) | result.more
        self.journals.metrics.log(result.version, metrics)
        self._follow(result.version, metrics)
        self._judge(result.version, metrics)
        return metrics

    def add_own(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of callbacks: a row of its own, of the same step."""
        self.journals.metrics.log(step, metrics)

    async def refresh(
        self, ledger: Ledger, roles: list[str], waits: Mapping[str, str], counts: Callable[[], Mapping[str, Any]]
    ) -> None:
        """Keeps the display up to date, as long as the run runs. `waits`: see `Changes`. `counts`: the groups, counted now. The
        reward workers of all domains are one line."""
        roles = [*(role for role in roles if not role.startswith("rewards.")), "rewards"]
        while True:
            self.show(ledger, roles, waits, counts())
            await asyncio.sleep(REFRESH_S)

    def show(self, ledger: Ledger, roles: list[str], waits: Mapping[str, str], groups: Mapping[str, Any]) -> None:
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
        self._roles = lines
        self._counts = groups
        counts = {**groups, "dropped": sum(groups["dropped"].values())}
        self.display.update(replace(self._snapshot(), roles=lines, groups=counts))

    def _snapshot(self) -> RunSnapshot:
        """The snapshot without roles and groups."""
        step, first = (self.step, self._first_step) if self._counted == "step" else (len(self.results), 0)
        running, done = self.running_s(), step - first
        return RunSnapshot(
            step=step,
            max_steps=self.max_steps,
            counted=self._counted,
            elapsed_s=running,
            eta_s=(monotonic() - self._began) / done * (self.max_steps - step) if done else None,
            reward=self._reward,
            validation=self.validation,
            cut=self._cut,
            verdict=self._verdict("running", self._counts),
            staleness_now=self._lag,
            staleness_bound=self.staleness.bound,
            tokens_per_s=self.response_tokens / running if running and self.response_tokens else None,
        )

    def _verdict(self, state: str, groups: Mapping[str, Any]) -> Verdict | None:
        """None of a run that trains nothing."""
        return verdict(self.curves.curve, state, groups) if self._trains else None

    def figures(self, wall_s: float) -> dict[str, object]:
        """Steps, validation, staleness and throughput, for summary.json."""
        seconds = max(wall_s, 1e-9)
        return {
            "steps": self.step,
            "started_s": self._started_s,
            "validation": [each._asdict() for each in self.validation],
            "tags": self._tags.figures(),
            "warnings": [*self._found, *self._training_warnings.warnings],
            "alarms": [alarm._asdict() for alarm in self.alarms.given],
            "memory": self.memory.figures(),
            "staleness": self.staleness.summary(),
            **({} if self._inherited is None else {"inherited": self._inherited}),
            "throughput": {"samples_per_s": self.samples / seconds, "response_tokens_per_s": self.response_tokens / seconds},
        }

    def roles(self) -> list[dict[str, Any]]:
        """What each role did or waited for when that was last shown, for summary.json while the run runs."""
        return [asdict(role) for role in self._roles]

    def interrupt(self) -> None:
        """Closes everything: another record goes on in the same folder, from a checkpoint."""
        self._close("interrupted")
        self.files.finish(None, self._ledger)

    def finish(self, summary: dict[str, Any]) -> None:
        """Writes the files for the last time, closes everything, and says where the results are."""
        found = self._verdict(summary["status"], summary.get("groups") or {})
        if found is not None:
            summary["verdict"] = {"kind": found.kind, "text": found.text}
        for metric in self.alarms.never_seen if self.step > self._first_step else ():
            summary["warnings"].append(f"alarms: no step and no validation had {metric}: nothing was watched")
        try:
            self._close(summary["status"])
        except (OSError, RuntimeError) as error:  # the run has its own reason, which may be the same one
            summary["warnings"].append(f"not everything could be written at the end: {error}")
        try:
            self.files.finish(summary, self._ledger)
        except Superseded:
            return
        print_summary(summary, self.run_dir)

    def _close(self, status: Status) -> None:
        self.display.close()
        self.journals.close(status)


def archive_previous(run_dir: Path) -> Path | None:
    """Moves the folder of an earlier run of the same name aside (`<exp_name>.old-1`, `.old-2`, ...), so that nothing of it is
    lost. A plain number would do for no sweep: `ratio=0.1` is the name of another of its runs than `ratio=0`."""
    if not (run_dir / "config.yaml").exists():
        return None
    number = 1
    while (aside := run_dir.with_name(f"{run_dir.name}.old-{number}")).exists():
        number += 1
    run_dir.rename(aside)
    run_dir.mkdir()
    return aside
