"""One checkpoint at a time is written, of the moment at which it was begun, whatever becomes of the run meanwhile."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from roll.core.distributed.cluster import Cluster
from roll.core.errors import BackendLost, FlowError
from roll.core.record.checkpoint import CheckpointStore
from roll.core.record.ledger import Ledger
from roll.core.trainer.checkpoint_writer import CheckpointWriter


class Rank:
    """A worker and its handle. Its weights are a number, and it writes when the test says so."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.weights, self.taken = 0, -1
        self.writes = asyncio.Event()
        self.gate = asyncio.Event()
        self.error: Exception | None = None
        self.elsewhere = False

    async def call(self, method: str, *args: str) -> list[str] | None:
        return await getattr(self, method)(*args)

    async def snapshot(self) -> None:
        self.taken = self.weights

    async def write(self, directory: str) -> list[str]:
        taken = self.taken
        self.writes.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        Path(directory).mkdir(parents=True, exist_ok=True)
        (Path(directory) / "weights").write_text(str(taken))
        return [f"{directory}/weights", *([f"{directory}/of-another-node"] if self.elsewhere else [])]


class World:
    def __init__(self, folder: Path, *roles: str) -> None:
        self.store = CheckpointStore(folder)
        self.ledger = Ledger(time.monotonic())
        self.ranks = {role: Rank(role) for role in roles}
        self.state = SimpleNamespace(
            record=SimpleNamespace(step=0, journals=SimpleNamespace(sync=self.sync)),
            groups=SimpleNamespace(buffered=lambda: [{"group": self.state.record.step}], saved=self.saved),
            copy_database=self.copy_database,
            snapshot=lambda: {"step": self.state.record.step},
            checkpoints=self.store,
            saved_step=0,
        )
        clusters = {role: Cluster(role, [rank], 60.0) for role, rank in self.ranks.items()}
        self.writer = CheckpointWriter(self.state, clusters, self.ledger)

    def sync(self) -> None:
        """The journals are on disk; not on the event loop, where the disk would hold up everything."""
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        self.committed_before_sync = self.store.steps()

    async def saved(self, step: int, before: int) -> None:
        """Groups in memory have nothing to forget."""

    async def copy_database(self, file: Path, step: int) -> None:
        """They lie in none."""

    def train(self) -> None:
        self.state.record.step += 1
        for rank in self.ranks.values():
            rank.weights = self.state.record.step

    def open(self) -> None:
        for rank in self.ranks.values():
            rank.gate.set()

    def waited_s(self) -> float:
        return self.ledger.durations("stage.checkpoint_wait", time.monotonic()).get("busy", 0.0)

    def written(self) -> list[tuple[int, dict[str, int], list[dict[str, int]], dict[str, str]]]:
        """Step, state, buffer and the weights of each part of all checkpoints."""
        found = [self.store.load(self.store.root / f"step-{step}") for step in self.store.steps()]
        return [
            (c.step, c.state, c.buffer, {path.parent.name: path.read_text() for path in c.path.glob("*/weights")}) for c in found
        ]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, "actor_train")


def test_a_checkpoint_is_of_the_moment_at_which_it_was_begun(tmp_path):
    async def scenario() -> None:
        world = World(tmp_path, "actor_train", "critic")
        world.train()
        await world.writer.snapshot_critic()
        world.ranks["critic"].weights = 17  # devices that take turns: the critic may not stand still until `begin`
        await world.writer.begin()
        world.train()
        assert world.written() == []
        world.open()
        await world.writer.settle()
        assert world.written() == [(1, {"step": 1}, [{"group": 1}], {"trainer": "1", "critic": "1"})]
        assert world.state.saved_step == 1
        assert world.committed_before_sync == []

    asyncio.run(scenario())


def test_the_next_waits_until_the_one_before_is_complete(world):
    async def scenario() -> None:
        world.train()
        await world.writer.begin()
        world.train()
        second = asyncio.ensure_future(world.writer.begin())
        await world.ranks["actor_train"].writes.wait()
        assert not second.done() and world.ranks["actor_train"].taken == 1, "its snapshot would be a second one in memory"
        world.open()
        await second
        assert [step for step, *_ in world.written()] == [1] and world.waited_s() > 0
        await world.writer.settle()
        assert [(step, weights) for step, _, _, weights in world.written()] == [(1, {"trainer": "1"}), (2, {"trainer": "2"})]

    asyncio.run(scenario())


def test_what_keeps_one_from_being_written_ends_the_run_at_once_and_is_found_by_whoever_waits(world):
    async def scenario() -> None:
        watching = asyncio.ensure_future(world.writer.watch())
        world.train()
        await world.writer.begin()
        world.ranks["actor_train"].error = OSError(28, "No space left on device")
        world.open()
        for waiting in (watching, world.writer.settle(), world.writer.begin()):
            with pytest.raises(OSError, match="No space left"):
                await asyncio.wait_for(waiting, 10)
        assert world.written() == [] and world.state.saved_step == 0

    asyncio.run(scenario())


def test_files_that_another_machine_keeps_to_itself_make_no_checkpoint(world):
    """Every rank writes a part: without a file system that all machines see the driver would seal what it sees."""

    async def scenario() -> None:
        world.train()
        world.ranks["actor_train"].elsewhere = True
        world.open()
        await world.writer.begin()
        with pytest.raises(OSError, match=r"of-another-node was written on another machine: output_dir has to be on"):
            await world.writer.settle()
        assert world.written() == []

    asyncio.run(scenario())


def test_it_is_completed_when_training_fails(world):
    async def scenario() -> None:
        async with world.writer:
            world.train()
            await world.writer.begin()
            asyncio.get_running_loop().call_soon(world.open)
            raise ValueError("the next step fails")

    with pytest.raises(ValueError, match="the next step fails"):
        asyncio.run(scenario())
    assert [step for step, *_ in world.written()] == [1]


def test_a_failure_of_both_has_the_reason_of_training(world):
    async def scenario() -> None:
        async with world.writer:
            world.train()
            world.ranks["actor_train"].error = OSError(28, "No space left on device")
            await world.writer.begin()
            world.open()
            raise ValueError("the next step fails")

    with pytest.raises(ValueError, match="the next step fails"):
        asyncio.run(scenario())


def test_it_is_given_up_when_the_run_is_stopped_at_once(world):
    async def run() -> None:
        async with world.writer:
            world.train()
            await world.writer.begin()
            await asyncio.Event().wait()

    async def scenario() -> None:
        running = asyncio.ensure_future(run())
        await world.ranks["actor_train"].writes.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 10)
        world.open()

    asyncio.run(scenario())
    assert world.written() == []


def test_it_is_given_up_when_the_workers_are_lost(world):
    async def scenario() -> None:
        async with world.writer:
            world.train()
            await world.writer.begin()
            await world.ranks["actor_train"].writes.wait()
            raise FlowError("supervision: Ray died") from BackendLost("Ray died")

    with pytest.raises(FlowError, match="Ray died"):
        asyncio.run(asyncio.wait_for(scenario(), 10))
    assert world.written() == []
