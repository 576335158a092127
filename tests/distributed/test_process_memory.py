"""The memory of real processes."""

import asyncio
import subprocess
import sys

import pytest
import torch

from roll.core.configs.sizes import GIB
from roll.core.distributed.cluster import Cluster
from roll.core.distributed.machine import process_memory
from roll.core.errors import WorkerDied

TOUCHES = "import mmap, sys; block = mmap.mmap(-1, 64 << 20); block.write(bytes(64 << 20)); print(flush=True); sys.stdin.read()"


def test_memory_counts_the_processes_that_were_started():
    before, alone = process_memory(with_children=True), process_memory(with_children=False)
    with subprocess.Popen([sys.executable, "-c", TOUCHES], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        after, still_alone = process_memory(with_children=True), process_memory(with_children=False)
        child.stdin.close()
    assert 64 < after.rss_mb - before.rss_mb < 100
    assert abs(still_alone.rss_mb - alone.rss_mb) < 5


@pytest.mark.parametrize("imports", ["", "import torch"])
def test_where_no_device_is_used_there_is_no_figure(imports):
    program = f"{imports}\nfrom roll.core.distributed.machine import process_memory as read\n"
    program += "print(read(with_children=True).device_peak_mb)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "None\n"


def test_the_peak_is_that_of_the_device_with_most(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: (3 + device) * GIB)
    assert process_memory(with_children=False).device_peak_mb == 4 * 1024


class Handle:
    def __init__(self, name, answer):
        self.name = name
        self._answer = answer

    async def memory(self):
        if isinstance(self._answer, Exception):
            raise self._answer
        if self._answer == "silent":
            await asyncio.Event().wait()
        return self._answer


def test_workers_that_do_not_answer_are_left_out():
    here = process_memory(with_children=False)
    answers = [here, WorkerDied("gone"), "silent", None]
    cluster = Cluster("role", [Handle(f"role-{rank}", answer) for rank, answer in enumerate(answers)], 60.0)
    assert asyncio.run(asyncio.wait_for(cluster.memory(0.1), 30)) == {"role-0": here}
