"""A trainer and explorers as processes of their own, on virtual time: they share a database and a folder of weights, as real ones
do. Explorers join, leave and are killed; the trainer is ended and started again."""

from __future__ import annotations

import asyncio
import random
import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fault_schedules import COSTS, Fault, Schedule, config_of
from faulty import FaultyBackend, FaultySimulation
from hypothesis import strategies as st
from promises import FAULTS, LONGEST_S, SLOWEST_S, after_the_end, lost_tasks, show

from roll.cli.verify import read_run, violations
from roll.core.configs.rlvr import RLVRConfig
from roll.core.errors import DatabaseFailed
from roll.core.pipeline.run import Run
from roll.simulate.apart import Meeting, MetDatabase
from roll.simulate.costs import Costs, Spread
from roll.simulate.run import CHOSEN, unheard
from roll.simulate.virtual_loop import Stuck, run_virtually

KINDS = (
    "explorer joins",
    "explorer leaves",
    "explorer is killed",
    "trainer dies",
    "trainer is interrupted",
    "engine dies",
    "judge dies",
    "judging fails",
    "links are slow",
)
AGAIN_S = 3.0
"""Until somebody starts a process again."""
MOST_STARTS = 8


class Killed(Exception):
    pass


class Place(Meeting):
    """Where processes meet of which some are killed."""

    def __init__(self) -> None:
        super().__init__()
        self.over = asyncio.Event()

    def database(self, address: str, member_timeout: float) -> MortalDatabase:
        return MortalDatabase(address, member_timeout, self)


class MortalDatabase(MetDatabase):
    dead = False
    """Its process was killed: it asks nothing any more."""

    def kill(self):
        self.dead = True
        self._rollback()
        self._give_back()

    async def _call(self, work, *args, **more):
        if self.dead:  # killed in the line
            self._give_back()
        with suppress(Killed):
            return await super()._call(partial(self._alive, work), *args, **more)
        await self._meeting.over.wait()
        raise DatabaseFailed("killed")

    def _alive(self, work, *args):
        """Where it is killed after it has asked, and before its turn, it begins nothing that nobody ends."""
        if self.dead:
            raise Killed
        return work(*args)


@dataclass(frozen=True)
class PartySchedule:
    run: Schedule
    explorers: int
    faults: tuple[Fault, ...]


@st.composite
def parties(draw: st.DrawFn) -> PartySchedule:
    ratio = draw(st.sampled_from([1.0, 0.0, 2.0]))
    run = Schedule(
        seed=draw(st.integers(0, 999)), engines=draw(st.integers(1, 2)), trainers=1, steps=draw(st.integers(2, 5)),
        batch=draw(st.integers(2, 3)), ratio=ratio, save_steps=draw(st.integers(1, 2)),
        eval_steps=draw(st.sampled_from([100, 2])),
        validated=2, push=1, pull=draw(st.sampled_from([0, 2])) if ratio else 0, redundant=0,
        policy=draw(st.sampled_from(["wait", "drop"])) if ratio else "wait", mode=draw(st.sampled_from(["interrupt", "drain"])),
        expand=False, on_arrival=False, shared=False, copy="", newest_first=False, reuse=1, synchronous_after=0, watched=False,
        latency_s=draw(st.sampled_from([0.0, 0.05, 1.0])), pass_rate=draw(st.sampled_from([0.5, 0.9])),
        train_s=draw(st.sampled_from([1.5, 6.0])), faults=(),
    )  # fmt: skip
    fault = st.builds(
        Fault,
        at_s=st.floats(0, 60).map(lambda s: round(s, 2)),
        kind=st.sampled_from(KINDS),
        whom=st.integers(0, 3),
        lasts_s=st.floats(0, 30).map(lambda s: round(s, 1)),
    )
    return PartySchedule(run, draw(st.integers(1, 2)), tuple(draw(st.lists(fault, max_size=6))))


class Process:
    """Of the party: started again until it has come to its end."""

    def __init__(self, party: Party, name: str) -> None:
        self._party, self.name = party, name
        self.trains = name == "trainer"
        self.run: Run | None = None
        self.backend: FaultyBackend | None = None
        self.leaves = self.killed = False
        self.summary: dict = {}
        self.task = asyncio.ensure_future(self._until_its_end())

    async def _until_its_end(self) -> None:
        for _ in range(MOST_STARTS):
            self.summary = await self._once()
            if self.summary["status"] == "finished" and self.run.state.groups.ended is None:
                self._party.wrong.append(f"{self.name} has finished before the run")
            if self.summary["status"] == "finished" or self.leaves or self.killed or self._party.done:
                return
            await asyncio.sleep(AGAIN_S)

    async def _once(self) -> dict:
        simulation = FaultySimulation(self._party.config(self.name), self._party.costs, self._party.wrong)
        simulation = simulation.from_checkpoint() if self.trains else simulation
        self.backend = simulation.backend()
        self.backend.links.latency = self._party.latency
        place = self._party.place
        async with place.lock:  # it looks at the database, and mends it
            self.run = simulation.run(self.backend, place.database)
        return await self.run.run()

    async def kill(self) -> None:
        """As by SIGKILL: it says goodbye to nobody."""
        if self.run is None or self.backend is None or self.run._components is None:
            return
        self.killed = True
        self.run.state.groups._database.kill()
        self.backend.without_node.update(self.backend.workers)
        await self.backend.shutdown()

    def workers(self, role: str) -> list:
        found = self.backend.workers if self.backend is not None else {}
        return [found[name] for name in sorted(found) if name.startswith(role)]


class Party:
    def __init__(self, schedule: PartySchedule, folder: Path) -> None:
        self.schedule, self.folder, self.place = schedule, folder, Place()
        self.costs = Costs(**COSTS, pass_rate=Spread(schedule.run.pass_rate), train_s=schedule.run.train_s)
        self.wrong: list[str] = []
        self.done = False
        self._random = random.Random(schedule.run.seed)
        self._slow_until = -1.0
        self._joined = 0
        self.processes: list[Process] = []

    def config(self, name: str) -> RLVRConfig:
        base = config_of(self.schedule.run, self.folder)
        own = {"mode": "train"} if name == "trainer" else {"mode": "explore", "explorer_name": name}
        engines = list(range(self.schedule.run.engines))
        chosen = {**CHOSEN, "model_update_transport": "checkpoint_dir", "resume_from_checkpoint": "auto", **own}
        infer = replace(base.actor_infer, device_mapping=engines)
        times = {"member_timeout": 20.0, "peer_timeout": 300.0}
        return replace(base, actor_infer=infer, output_dir=str(self.folder), max_trainer_restarts=0, **times, **chosen)

    def latency(self) -> float:
        slow = asyncio.get_running_loop().time() < self._slow_until
        most = SLOWEST_S if slow else self.schedule.run.latency_s
        return self._random.uniform(0, most) if most else 0.0

    def join(self) -> None:
        self._joined += 1
        self.processes.append(Process(self, f"explorer-{self._joined}"))

    @property
    def explorers(self) -> list[Process]:
        return [each for each in self.processes if not each.trains and not each.task.done() and not (each.leaves or each.killed)]

    async def play(self) -> list[str]:
        trainer = Process(self, "trainer")
        self.processes.append(trainer)
        for _ in range(self.schedule.explorers):
            self.join()
        events = asyncio.ensure_future(self._events())
        try:
            async with asyncio.timeout(LONGEST_S):
                await trainer.task
                self.done = True
                events.cancel()  # who is killed from now on would be waited for
                await asyncio.gather(*(each.task for each in self.explorers))
        except TimeoutError:
            waits = {each.name: each.run and each.run.state.groups.changes.waits for each in self.processes}
            return [f"does not end within {LONGEST_S:g} s: {waits}"]
        finally:
            events.cancel()
            self.place.over.set()
        if (summary := trainer.summary)["status"] != "finished":
            return [f"the trainer has {summary['status']}: {summary['reason']}"]
        run_dir = self.folder / "run"
        steps = [] if summary["steps"] == self.schedule.run.steps else [f"{summary['steps']} steps are trained"]
        return [*steps, *violations(read_run(run_dir)), *lost_tasks(run_dir), *self.wrong, *after_the_end(summary)]

    async def _events(self) -> None:
        for fault in sorted(self.schedule.faults, key=lambda each: each.at_s):
            await asyncio.sleep(max(0.0, fault.at_s - asyncio.get_running_loop().time()))
            if self.explorers:
                await self._bring(fault)
            if not self.explorers:
                await asyncio.sleep(AGAIN_S)
                self.join()

    async def _bring(self, fault: Fault) -> None:
        trainer, explorers = self.processes[0], self.explorers
        one = explorers[fault.whom % len(explorers)]
        match fault.kind:
            case "explorer joins":
                self.join()
            case "explorer leaves" if one.run is not None and one.run._components is not None:
                one.leaves = True
                one.run.interrupt()
            case "explorer is killed":
                await one.kill()
            case "trainer dies" if workers := trainer.workers("actor_train"):
                workers[0].kill()
            case "trainer is interrupted" if trainer.run is not None and trainer.run._components is not None:
                trainer.run.interrupt()
            case "engine dies" if workers := one.workers("actor_infer"):
                workers[fault.whom % len(workers)].kill()
            case "judge dies" if workers := one.workers("rewards"):
                workers[fault.whom % len(workers)].kill()
            case "judging fails" if workers := one.workers("rewards"):
                workers[0].worker.fails += 3
            case "links are slow":
                self._slow_until = asyncio.get_running_loop().time() + fault.lasts_s
            case _:
                return
        if trainer.run is not None:
            show(trainer.run, FAULTS, f"{fault.kind} ({fault.whom})", fault.lasts_s)


def broken_promises_of(schedule: PartySchedule, folder: Path) -> list[str]:
    """What did not hold in the run of the party, in words; nothing if all did."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with unheard():
            return run_virtually(Party(schedule, folder).play())
    except Stuck as error:
        return [f"waits for ever: {error}"]
