"""A stage that is stuck in a real worker, in this process and in another: its stacks say where."""

import asyncio
import os
import re
import time
from pathlib import Path

import pytest

from roll.core.distributed.backend import WorkerSpec
from roll.core.distributed.cluster import Cluster
from roll.core.distributed.device_locks import DeviceLocks
from roll.core.distributed.devices import detect, place
from roll.core.errors import Closed
from roll.core.flow.flow import Flow, Hangs
from roll.core.flow.stage import SourceStage, Stage
from roll.core.record.ledger import Ledger
from roll.platform.local_backend import LocalBackend
from roll.reports import hang_watch
from roll.reports.hang_watch import HangWatch

HERE = str(Path(__file__).parent)
FLOOR_S = 0.3


class Lines:
    """What is printed. The first line releases what is stuck."""

    def __init__(self, released: Path):
        self.lines = []
        self._released = released

    def note(self, line):
        self.lines.append(line)
        self._released.touch()


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setattr(hang_watch, "LOOK_S", 0.05)


async def hang_in(method: str, backend, folder: Path) -> tuple[list[str], list[str]]:
    """The printed lines and the stacks that were written, of a flow whose fourth item is stuck in the worker's method."""
    (placement,) = place((0,), detect())
    cluster = await Cluster.start("role", backend, [WorkerSpec("role-0", "hang_worker.Stuck", placement)], 60.0)
    released = folder / "released"
    items = iter(range(4))

    async def following() -> int:
        if (item := next(items, None)) is None:
            raise Closed
        return item

    async def work(item: int) -> int:
        await cluster.call(0, method if item == 3 else "answer", str(released))
        return item

    flow = Flow(Ledger(time.monotonic()), DeviceLocks({}), time.monotonic)
    flow.hangs = Hangs(FLOOR_S)
    stage = Stage("work", work, role="role")
    flow.join([SourceStage("admit", following), stage])
    printed = Lines(released)
    await flow.run([stage], [HangWatch(flow, {"role": cluster}, folder / "stacks", printed).run()])
    return printed.lines, [path.read_text() for path in (folder / "stacks").iterdir()]


def check(lines: list[str], stacks: list[str], folder: Path, method: str) -> str:
    assert len(lines) == len(stacks) == 1, "once, not at every look"
    told = rf"work works on version 3 for \d s \(median \d\.\d s\): role-0 has not answered {method}"
    assert re.match(told, lines[0]), lines
    assert str(next((folder / "stacks").iterdir())) in lines[0]
    driver, *workers = stacks[0].split("\n== ")
    assert driver.startswith("== the driver\n")
    if workers:
        assert [text.partition("\n")[0] for text in workers] == ["role-0"]
    return workers[0] if workers else driver


@pytest.mark.parametrize("method", ["block_the_event_loop", "block_the_thread", "wait_for_nobody"])
def test_a_worker_in_this_process(method, tmp_path):
    """A blocked event loop is the driver's own, and is noticed nevertheless."""

    async def main():
        backend = LocalBackend()
        lines, stacks = await hang_in(method, backend, tmp_path)
        assert method in check(lines, stacks, tmp_path, method)
        await backend.shutdown()

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.ray
@pytest.mark.usefixtures("shared_ray")
def test_a_worker_in_another_process(tmp_path, monkeypatch):
    from roll.platform.ray_backend import RayBackend, RayHandle

    async def main():
        backend = RayBackend(detect())
        try:
            for method in ("block_the_event_loop", "block_the_thread", "wait_for_nobody"):
                folder = tmp_path / method
                folder.mkdir()
                text = check(*await hang_in(method, backend, folder), folder, method)
                assert f"in {method}" in text or f"Stuck.{method} (hang_worker.py:" in text, text
                blocked = "its event loop does not answer" in text
                assert blocked is (method == "block_the_event_loop"), text
            # As on another node, where the driver cannot send the signal itself.
            monkeypatch.setattr(RayHandle, "local_pid", None)
            text = check(*await hang_in("block_the_event_loop", backend, tmp_path), tmp_path, "block_the_event_loop")
            assert "in block_the_event_loop" in text, text
        finally:
            await backend.shutdown()

    asyncio.run(asyncio.wait_for(main(), 280))
