"""A run whose groups lie in a database, played by owners in one process, each with a connection of its own as processes have."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

from run_files import ended, lines, make_run, sample
from sqlalchemy import NullPool, create_engine, text

from roll.core.data.sample import Prompt, Sample, VersionSpan
from roll.core.distributed.processes import Process
from roll.core.groups.admission import Admission
from roll.core.groups.parts import GroupParts
from roll.core.groups.pipeline_depth import PipelineDepth
from roll.core.groups.progress import Progress
from roll.core.groups.tasks import TaskSource
from roll.core.record.run_identity import RunIdentity
from roll.core.record.trace import Trace
from roll.topologies.sql.admittance import BEAT_S
from roll.topologies.sql.connecting import url_of
from roll.topologies.sql.database import Database
from roll.topologies.sql.following import Membership
from roll.topologies.sql.groups import SqlGroups
from roll.topologies.sql.joining import Member

B, STEPS = 2, 6


def run(main, seconds=20):
    asyncio.run(asyncio.wait_for(main, seconds))


class Tasks(TaskSource):
    """Rows 0, 1, 2, ... of one task set."""

    def __init__(self):
        self.served, self.returned = 0, []

    def next(self):
        if self.returned:
            return self._prompt(self.returned.pop(0))
        self.served += 1
        return self._prompt(f"d/0/{self.served - 1}")

    def _prompt(self, uid):
        return Prompt(uid, [1, 2], "ab", "t", "d", "truth", {"level": 3})

    def cursor(self, outstanding=()):
        return {"served": self.served, "returned": [prompt.uid for prompt in outstanding] + self.returned}

    def restore(self, cursor):
        self.served, self.returned = cursor["served"], list(cursor["returned"])


class Journal:
    def __init__(self):
        self.rows = []

    def write(self, **row):
        self.rows.append(row)


class Party:
    """The processes of one run. `now` is the clock of all of them."""

    def __init__(self, address, ratio=1.0):
        self.address = address
        self.ratio = ratio
        self.max_reuse = 1
        self.now = 0.0
        self.contract = {"rollout_batch_size": B, "async_generation_ratio": ratio}
        self.identity = RunIdentity("5eed", "party", "/runs/party", "here", "today")
        self.steps = STEPS
        self.process = Process("here", 1)
        self.patience = 1e9
        self.ways = {}
        """Addresses of the database for single processes."""

    def member(self, name, *, explores=True, trains=False, step=0, task_set="tasks", timeout=10.0, devices=1):
        admission = Admission(B, self.ratio, self.steps, version=step, max_reuse=self.max_reuse if trains else 1)
        depth = PipelineDepth(self.ratio, fixed=self.ratio)
        journal, trace = Journal() if trains else None, Trace(Path("trace"), lambda: self.now)
        who = Member(name, explores, trains, self.process, task_set, devices)
        parts = GroupParts(admission, depth, Tasks(), journal, trace, Progress(B, 0), lambda: self.now)
        database = Database(self.ways.get(name, self.address), timeout)
        return SqlGroups(parts, database, Membership(who, self.identity, timeout, self.patience))

    @asynccontextmanager
    async def joined(self, name, *, trainer_at=None, **options):
        groups = self.member(name, step=trainer_at[0] if trainer_at else 0, **options)
        await groups.join(self.contract, trainer_at)
        attending = asyncio.create_task(groups.keep_in_sync())
        attending.add_done_callback(lambda task: task.cancelled() or print(repr(task.exception())))
        try:
            yield groups
        finally:
            attending.cancel()
            await asyncio.wait([attending])
            await groups.leave()

    async def pass_time(self, seconds, who):
        """`who` goes on looking for signs of life meanwhile."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(self.now + BEAT_S, until)
            await who.until(lambda: (who._signs._looked or 0.0) > self.now - BEAT_S / 2)

    def trainer(self, at=(0, 0)):
        return self.joined("trainer", explores=False, trains=True, trainer_at=at)

    def rows(self, sql):
        engine = create_engine(url_of(self.address), poolclass=NullPool)
        with engine.connect() as connection:
            return connection.execute(text(sql)).all()

    def change(self, sql):
        engine = create_engine(url_of(self.address), poolclass=NullPool)
        with engine.begin() as connection:
            connection.execute(text(sql))


def roll_out(group, version=None):
    version = group.start_version if version is None else version
    group.samples = [
        Sample(group.prompt, i, [5, 6 + i], [-0.5, -1 / 3], [VersionSpan(0, 2, version)], "stop", "xy", float(i))
        for i in range(2)
    ]
    return group


async def follow(groups):
    """Engines that take every version at once."""
    served = [groups.admission.newest]
    while True:
        await groups.until(lambda: groups.admission.newest > served[-1])
        served.append(groups.admission.newest)
        await groups.set_served(served[-1])


async def explore(groups, count):
    done = []
    for _ in range(count):
        group = roll_out(await groups.start())
        await groups.complete(group)
        done.append(group)
    return done


def with_explorers(folder):
    """A run of a trainer and two explorers, of which the first has left; what it dropped lies in its own folder."""

    async def playing():
        party = Party(f"sqlite:///{folder}/groups.db")
        async with party.trainer() as trainer:
            async with party.joined("first") as first:
                await explore(first, 2 * B)
                await trainer.trained(await trainer.lease(0))
                await trainer.set_published(1)
                await first.set_served(1)
            async with party.joined("second") as second:
                await second.set_served(0)
                await explore(second, 1)

    run(playing())
    lines(folder / "groups.jsonl", [ended(0, 1), ended(1, 1), ended(4, 2, "dropped", "equal")])
    own = make_run(folder / "explorers/first", steps=1)
    lines(own / "samples-000000000000900.jsonl", [sample(2, 4, 0, status="dropped: equal")])
    return folder
