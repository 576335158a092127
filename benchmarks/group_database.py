"""How many groups a second go through a database of groups, and how long a process needs to take part again.

Writers are processes of their own that start groups and complete them with samples of the given size, as explorers do; one
trainer leases them, a batch a step, and trains nothing. Time counts from the moment at which all writers have joined. `reload` is
what a process that joins needs when that many groups are stored.

    python benchmarks/group_database.py [--databases sqlite postgresql] [--writers 1 8] [--bytes 4096 262144] [--groups 2000]
        [--stored 100000]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, insert, update

from roll.core.data.sample import Prompt, Sample, SampleGroup, VersionSpan
from roll.core.distributed.processes import Process
from roll.core.groups.admission import Admission
from roll.core.groups.parts import GroupParts
from roll.core.groups.pipeline_depth import PipelineDepth
from roll.core.groups.progress import Progress
from roll.core.groups.tasks import TaskSource
from roll.core.record.group_log import GroupLog
from roll.core.record.run_identity import RunIdentity
from roll.core.record.trace import Trace
from roll.topologies.sql.database import Database
from roll.topologies.sql.following import Membership
from roll.topologies.sql.groups import SqlGroups
from roll.topologies.sql.joining import Member
from roll.topologies.sql.tables import groups as group_rows
from roll.topologies.sql.tables import runs

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
import postgres

from roll.core.errors import Closed

BATCH, RATIO, SAMPLES, LANES = 32, 7.0, 8, 8
BYTES_OF_TOKEN = 12
"""An id of four bytes and a log-prob of eight."""


class Numbers(TaskSource):
    """Tasks 0, 1, 2, ..."""

    def __init__(self) -> None:
        self._served, self._returned = 0, list[str]()

    def next(self) -> Prompt:
        uid = self._returned.pop(0) if self._returned else f"numbers/0/{self._served}"
        self._served += 1
        return Prompt(uid, [1, 2, 3], "1+2=", "numbers", "numbers", "3")

    def cursor(self, outstanding: Any = ()) -> dict[str, Any]:
        return {"seed": 0, "served": {"numbers": self._served}, "returned": self._returned}

    def restore(self, cursor: Any) -> None:
        self._served, self._returned = cursor["served"]["numbers"], list(cursor["returned"])


def owner(address: str, steps: int, name: str, folder: Path) -> SqlGroups:
    trains = name == "trainer"
    parts = GroupParts(
        Admission(BATCH, RATIO, steps),
        PipelineDepth(RATIO, fixed=RATIO),
        Numbers(),
        GroupLog(folder) if trains else None,
        Trace(folder / name),
        Progress(BATCH, 0),
        time.monotonic,
    )
    member = Member(name, not trains, trains, Process.this(), "numbers")
    identity = RunIdentity("benchmark", "benchmark", str(folder), "here", "")
    return SqlGroups(parts, Database(address, 60.0), Membership(member, identity, 600.0, 600.0))


def rolled_out(group: SampleGroup, tokens: int) -> SampleGroup:
    spans = [VersionSpan(0, tokens, group.start_version)]
    group.samples = [
        Sample(group.prompt, i, list(range(tokens)), [-0.5] * tokens, spans, "stop", "3", float(i % 2)) for i in range(SAMPLES)
    ]
    return group


async def write(address: str, steps: int, name: str, folder: Path, size: int, ready: Barrier) -> None:
    groups = owner(address, steps, name, folder)
    await groups.join({}, None)
    attending = asyncio.create_task(groups.keep_in_sync())
    await asyncio.to_thread(ready.wait)

    async def lane() -> None:
        while True:
            group = await groups.start()
            await groups.complete(rolled_out(group, size // SAMPLES // BYTES_OF_TOKEN))

    async def follow() -> None:
        served = [0]
        while True:
            await groups.until(lambda: groups.admission.newest > served[-1])
            served.append(groups.admission.newest)
            await groups.set_served(served[-1])

    following = asyncio.create_task(follow())
    lanes = [asyncio.create_task(lane()) for _ in range(LANES)]
    await asyncio.wait(lanes)  # each ends with `Closed`
    assert all(isinstance(task.exception(), Closed) for task in lanes), lanes
    for task in (attending, following):
        task.cancel()
    await groups.leave()


async def train(address: str, steps: int, folder: Path, ready: Barrier) -> float:
    groups = owner(address, steps, "trainer", folder)
    await groups.join({}, (0, 0))
    attending = asyncio.create_task(groups.keep_in_sync())
    await asyncio.to_thread(ready.wait)
    began = time.monotonic()
    for step in range(steps):
        await groups.trained(await groups.lease(step))
        await groups.set_published(step + 1)
        await groups.saved(step + 1, step)
    seconds = time.monotonic() - began
    await groups.announce_end("finished", "")
    attending.cancel()
    await groups.leave()
    return seconds


def run_writer(*arguments: Any) -> None:
    asyncio.run(write(*arguments))


def throughput(address: str, writers: int, size: int, count: int, folder: Path) -> float:
    """Groups a second, from start to trained."""
    steps = count // BATCH
    ready = multiprocessing.Barrier(writers + 1)
    processes = [
        multiprocessing.Process(target=run_writer, args=(address, steps, f"writer-{i}", folder, size, ready))
        for i in range(writers)
    ]
    for process in processes:
        process.start()
    seconds = asyncio.run(train(address, steps, folder, ready))
    for process in processes:
        process.join()
    return steps * BATCH / seconds


async def reload(address: str, stored: int, folder: Path) -> float:
    """Seconds until a trainer has joined a run that has trained so many groups."""
    steps = stored // BATCH
    first = owner(address, 2 * steps, "trainer", folder)
    await first.join({}, (0, 0))
    await first.leave()
    row = {"seq": 1, "state": "trained", "member": "writer", "task_set": "numbers", "domain": "numbers", "start_version": 0}
    row |= {"reason": "", "lag": 0, "started_at": 0.0, "ended_at": 1.0}
    engine = create_engine(address)
    with engine.begin() as connection:
        rows = [{**row, "id": i, "prompt_uid": f"numbers/0/{i}", "step": i // BATCH + 1} for i in range(steps * BATCH)]
        connection.execute(insert(group_rows), rows)
        connection.execute(update(runs).values(trained=steps * BATCH, next_step=steps, newest=steps, version=steps))
    began = time.monotonic()
    again = owner(address, 2 * steps, "trainer", folder)
    await again.join({}, (steps, 1))
    seconds = time.monotonic() - began
    await again.leave()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--databases", choices=["sqlite", "postgresql"], nargs="+", default=["sqlite", "postgresql"])
    parser.add_argument("--writers", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--bytes", type=int, nargs="+", default=[4096, 262144])
    parser.add_argument("--groups", type=int, default=2000)
    parser.add_argument("--stored", type=int, default=100000)
    options = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    for database in options.databases:
        if database == "postgresql" and (why := postgres.missing()):
            print(f"postgresql is left out: {why}")
            continue
        measure(database, options)


def measure(database: str, options: argparse.Namespace) -> None:
    print(f"{database}\n{'writers':>8}{'bytes a group':>15}{'groups/s':>10}{'MB/s':>8}", flush=True)
    for writers in options.writers:
        for size in options.bytes:
            with new_database(database) as (address, folder):
                rate = throughput(address, writers, size, options.groups, folder)
            print(f"{writers:>8}{size:>15}{rate:>10.0f}{rate * size / 1e6:>8.1f}", flush=True)
    with new_database(database) as (address, folder):
        seconds = asyncio.run(reload(address, options.stored, folder))
    print(f"reload with {options.stored} groups: {seconds:.2f} s", flush=True)


@contextmanager
def new_database(database: str) -> Iterator[tuple[str, Path]]:
    """The address of an empty one, and a folder for other files."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        if database == "sqlite":
            yield f"sqlite:///{name}/groups.db", Path(name)
        else:
            yield f"{stack.enter_context(postgres.server(durable=True))}/postgres", Path(name)


if __name__ == "__main__":
    main()
