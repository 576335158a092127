"""The memory of real processes, and what a container's limits leave."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from roll.configs.units import GIB, MIB
from roll.distributed import machine
from roll.distributed.backend import WorkerDied
from roll.distributed.cluster import Cluster
from roll.distributed.machine import free_memory
from roll.distributed.process_memory import process_memory

TOUCHES = (
    "import mmap, sys; block = mmap.mmap(-1, 64 << 20, {flags}); block.write(bytes(64 << 20)); "
    "print(flush=True); sys.stdin.read()"
)


@pytest.mark.parametrize(("flags", "private"), [("mmap.MAP_PRIVATE", True), ("mmap.MAP_SHARED", False)])
def test_memory_counts_the_processes_that_were_started(flags, private):
    program = TOUCHES.format(flags=flags)
    before, alone = process_memory(with_children=True), process_memory(with_children=False)
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        after, still_alone = process_memory(with_children=True), process_memory(with_children=False)
        child.stdin.close()
    assert 64 < after.rss_mb - before.rss_mb < 100
    assert (64 < after.private_mb - before.private_mb < 100) is private
    assert abs(still_alone.rss_mb - alone.rss_mb) < 5
    assert alone.pid == os.getpid() and alone.free_mb > 0


@pytest.mark.parametrize("imports", ["", "import torch"])
def test_where_no_device_is_used_there_is_no_figure(imports):
    program = f"{imports}\nfrom roll.distributed.process_memory import process_memory as read\n"
    program += "print(read(with_children=True).device_peak_mb)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "None\n"


def test_the_peak_is_that_of_the_device_with_most(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: (3 + device) * GIB)
    assert process_memory(with_children=False).device_peak_mb == 4 * 1024


@pytest.mark.parametrize("version", [2, 1])
def test_free_memory_is_what_the_container_has_left(tmp_path, monkeypatch, version):
    group = replace(machine.CGROUPS[2 - version], folder=tmp_path)
    monkeypatch.setattr(machine, "CGROUPS", (group,))
    whole = free_memory()
    (tmp_path / group.limit).write_text(f"{2 * GIB}\n")
    (tmp_path / group.used).write_text(f"{2 * GIB - 10 * MIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\n{group.reclaimable} {3 * MIB}\n")
    assert free_memory() == 13 * MIB < whole
    (tmp_path / group.limit).write_text("max\n")
    assert free_memory() > 13 * MIB, "no limit"


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
