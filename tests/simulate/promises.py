"""What has to hold whatever happens to a run, and how faults are brought about in one."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

from fault_schedules import COSTS, Fault, Schedule, config_of
from faulty import FaultySimulation, simulate_with_faults, with_faults

from roll.cli.verify import read_run, violations
from roll.core.data.sample import SampleGroup
from roll.core.errors import EngineError
from roll.core.groups.changes import Changes
from roll.core.record.callbacks import Callback
from roll.core.record.trace import Span
from roll.simulate.costs import Costs, Spread
from roll.simulate.virtual_loop import Stuck

LONGEST_S = 2_000.0
"""Of virtual time, for a run of some steps of some seconds: whoever takes longer does not come to an end."""
MOST_RUNS = 4
"""Of one schedule: each but the last is ended by somebody, and resumed."""
LOOK_S = 0.25
SLOWEST_S = 8.0
"""A message, while links are slow: two of them are longer than an engine may take for a health check."""
DISK_FULL = "No space left on device"
KEPT = Path(__file__).parents[2] / "build/broken_schedule"
"""The runs of the shortest schedule that breaks a promise, as the page shows them."""
SCHEDULE = "schedule.json"
"""Holds the schedule, for again.py."""
FAULTS, BROKEN = "faults", "broken promises"
"""Rows of the page's time view."""
ROLES = {"engine": "actor_infer", "trainer": "actor_train", "judge": "rewards", "judging": "rewards"}


def held(judge: Callable[[Any, Path], list[str]], schedule: Any, folder: Path) -> None:
    """Fails if a promise is broken, and keeps the schedule and what the folder holds: the last that hypothesis tries is the
    shortest schedule."""
    broken = ["it raises"]
    try:
        broken = judge(schedule, folder)
    finally:
        if broken:
            shutil.rmtree(KEPT, ignore_errors=True)
            shutil.copytree(folder, KEPT)
            (KEPT / SCHEDULE).write_text(json.dumps(asdict(schedule), indent=1))
    again = f"the same again, with a debugger: {sys.executable} {Path(__file__).with_name('again.py')} {KEPT / SCHEDULE} --break"
    look = f"who did what when, with rows for faults and for broken promises: roll ui {KEPT}"
    assert not broken, "\n".join(["promises are broken", *broken, again, look])


def show(run, row: str, what: str, lasts_s: float = 0.0) -> None:
    """In the time view of the run."""
    now = asyncio.get_running_loop().time()
    run.state.record.files.trace.add(Span(row, what, now, now + lasts_s, {}))


def broken_promises(schedule: Schedule, folder: Path) -> list[str]:
    """What did not hold in the run of the schedule, in words; nothing if all did."""
    shutil.rmtree(folder, ignore_errors=True)
    config = with_faults(config_of(schedule, folder), folder)
    costs = Costs(**COSTS, pass_rate=Spread(schedule.pass_rate), train_s=schedule.train_s)
    simulation = FaultySimulation(config, costs, callbacks=[Told()] if schedule.watched else [])
    found: list[str] = []
    offset = 0.0
    for number in itertools.count(1):
        last = number == MOST_RUNS
        watch = Watch(schedule, offset, last=last)
        try:
            # SIGTERM's last resort is the end of this process.
            with mock.patch("roll.core.pipeline.lifecycle.end_within"), mock.patch.object(Changes, "until", watch.waiters.until):
                summary = simulate_with_faults(simulation.from_checkpoint(), watch.run)
        except Stuck as error:
            return [*found, f"run {number} waits for ever: {error}"]
        except asyncio.CancelledError:
            return [*found, *watch.found]
        offset += watch.lasted_s
        found += watch.found
        if last or not watch.may_end(summary["status"], summary["reason"]):
            break
    if summary["status"] != "finished":
        found.append(f"run {number} has {summary['status']}: {summary['reason']}")
    elif summary["steps"] != schedule.steps:
        found.append(f"{summary['steps']} of {schedule.steps} steps are trained")
    found += violations(read_run(Path(config.run_dir)))
    found += lost_tasks(Path(config.run_dir))
    return [*found, *simulation.wrong, *after_the_end(summary)]


def lost_tasks(run_dir: Path) -> list[str]:
    """Every task that was drawn has ended, of a run that was started again, too; or it is the first that a longer run draws,
    where the trainer has died after the last checkpoint."""
    statuses = [json.loads(line)["prompt_uid"] for line in (run_dir / "groups.jsonl").read_text().splitlines()]
    saved = sorted(run_dir.glob("checkpoints/step-*/pipeline.json"), key=lambda file: int(file.parent.name.removeprefix("step-")))
    statuses += json.loads(saved[-1].read_text())["cursor"]["returned"] if saved else []
    numbers = {int(uid.rpartition("/")[2]) for uid in statuses}
    missing = sorted(set(range(max(numbers, default=-1) + 1)) - numbers)
    return [f"the tasks {missing[:5]} were drawn and have no status"] if missing else []


def after_the_end(summary: dict) -> list[str]:
    groups = summary["groups"]
    left = [f"{groups[where]} groups are {where} at the end" for where in ("buffered", "in_flight") if groups[where]]
    staleness = summary["staleness"]
    late = [f"staleness {staleness['max']} is above {staleness['bound']}"] if staleness["max"] > staleness["bound"] else []
    return (left if summary["status"] == "finished" else []) + late


class Told(Callback):
    def on_group(self, group: SampleGroup, reason: str | None) -> None:
        """What is told takes a turn of the loop."""


class Waiters:
    """Who waits, and whether somebody sleeps on although what it waits for is there: a notification was lost. Such a wait may end
    with the next change all the same, a little late, and nothing else would show it."""

    def __init__(self) -> None:
        self._waiting: dict[object, Callable[[], object]] = {}
        self._could_go_on: set[object] = set()

    @property
    def until(self) -> Callable[..., Coroutine[object, object, object]]:
        """In the place of the method of `Changes`."""
        until = Changes.until

        async def counted(changes: Changes, predicate: Callable[[], object], who: str = "", what: str = "") -> object:
            this = object()
            self._waiting[this] = predicate
            try:
                return await until(changes, predicate, who, what)
            finally:
                del self._waiting[this]

        return counted

    def overslept(self) -> list[str]:
        """Those that could have gone on at the last look already: time has passed since."""
        could = {this for this, predicate in self._waiting.items() if predicate()}
        found = [f"{self._waiting[this].__qualname__} could go on, and nobody said so" for this in could & self._could_go_on]
        self._could_go_on = could
        return found


class Watch:
    """Runs beside a run: brings the faults about, and looks on."""

    def __init__(self, schedule: Schedule, offset: float, last: bool) -> None:
        """`last`: nothing happens any more that ends a run."""
        self._schedule, self._offset, self._last = schedule, offset, last
        self._random = random.Random(schedule.seed)
        self._fail = Counter()
        """(worker or method) -> how many of its calls will."""
        self._slow_until = -1.0
        self.signalled = False
        self.waiters = Waiters()
        self._found: dict[str, float] = {}
        """What did not hold -> when it did not for the first time."""
        self.lasted_s = 0.0

    def may_end(self, status: str, reason: str) -> bool:
        """Whether this is what a run may come to that is then started again."""
        if status == "interrupted":
            return self.signalled
        if self.signalled and "actor_train" in reason:
            return True  # a run that is about to stop does not restart its trainer: it has failed, and can be resumed
        # Roles cannot all start without the node; a checkpoint that is not complete is none.
        return status == "failed" and ("is gone" in reason or DISK_FULL in reason)

    @property
    def found(self) -> list[str]:
        return [f"after {at_s:g} s: {what}" for what, at_s in self._found.items()]

    def _tell(self, run, *found: str) -> None:
        for what in found:
            if what not in self._found:
                self._found[what] = round(self._offset + asyncio.get_running_loop().time(), 2)
                show(run, BROKEN, what)

    async def run(self, run, backend) -> None:
        loop = asyncio.get_running_loop()
        backend.links.latency = self._latency
        backend.links.fault = self._fault
        for fault in self._schedule.faults:
            if (delay := fault.at_s - self._offset) >= 0:
                loop.call_later(delay, self._bring, fault, run, backend)
        loop.call_later(LONGEST_S, self._give_up, run)
        try:
            await self._look(run)
        finally:
            self.lasted_s = loop.time()

    def _give_up(self, run) -> None:
        self._tell(run, f"run does not end within {LONGEST_S:g} s: {run.state.groups.changes.waits}")
        run._task.cancel()

    async def _look(self, run) -> None:
        """Versions only go forward, but where the trainer goes back to a checkpoint; what steps hold is what was admitted."""
        seen, groups, schedule = 0, None, self._schedule
        # Of the ratio that it began with: a run that becomes synchronous keeps its groups.
        most = math.ceil((1 + schedule.ratio) * schedule.batch) + schedule.redundant
        while True:
            state = run.state
            if state.groups is not groups:
                groups, seen = state.groups, state.first_step
            admission = groups.admission
            if admission.version < seen:
                self._tell(run, f"version {admission.version} is served after {seen}")
            if admission.version > state.record.step:
                self._tell(run, f"version {admission.version} is served, and {state.record.step} steps are trained")
            if len(admission.live) > most and not state.first_step:
                self._tell(run, f"{len(admission.live)} groups are live, at most {most} may be")
            seen = max(seen, admission.version)
            self._tell(run, *self.waiters.overslept())
            await asyncio.sleep(LOOK_S)

    def _latency(self) -> float:
        slow = asyncio.get_running_loop().time() < self._slow_until
        most = SLOWEST_S if slow else self._schedule.latency_s
        return self._random.uniform(0, most) if most else 0.0

    def _fault(self, name: str, method: str) -> Exception | None:
        who = name if method in ("receive_bucket", "activate_weights") else method
        if not self._fail[who]:
            return None
        self._fail[who] -= 1
        return OSError(28, DISK_FULL) if method == "write" else EngineError("a scripted failure")

    def _bring(self, fault: Fault, run, backend) -> None:
        who, _, what = fault.kind.partition(" ")
        node = who.endswith("'s")
        names = sorted(name for name in backend.workers if name.startswith(ROLES.get(who.removesuffix("'s"), "actor_infer")))
        worker = backend.workers[names[fault.whom % len(names)]] if names else None
        match fault.kind:
            case "judging fails" if worker:
                worker.worker.fails += 3
            case "weights fail" if worker:
                self._fail[worker.name] += 1
            case "writing fails" if not self._last:
                self._fail["write"] += 1
            case "links are slow":
                self._slow_until = asyncio.get_running_loop().time() + fault.lasts_s
            case "signal" | "SIGTERM" if not self._last:
                self.signalled = True
                (run.interrupt if fault.kind == "signal" else run.terminate)()
            case _ if node and worker and run._components is not None and not self._last and not backend.without_node:
                backend.without_node.add(worker.name)
                worker.kill()
                asyncio.get_running_loop().call_later(fault.lasts_s, backend.without_node.discard, worker.name)
            case _ if worker and run._components is not None and not node and what in ("dies", "hangs"):
                (worker.kill if what == "dies" else worker.hang)()
            case _:
                return
        show(run, FAULTS, f"{fault.kind} ({fault.whom})", fault.lasts_s)
