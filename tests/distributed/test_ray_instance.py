"""A private Ray: who can see it, what it starts, how it grows, and what its death looks like; with a real one."""

import asyncio
import errno
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import ray
from ray._private import worker as ray_worker

from roll.core.distributed.backend import WorkerSpec
from roll.core.distributed.cluster import Cluster
from roll.core.distributed.devices import detect, place
from roll.core.errors import BackendLost, WorkerDied
from roll.platform import ray_instance
from roll.platform.ray_backend import RayBackend

HERE = str(Path(__file__).parent)
COUNTER = "backend_worker.Counter"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(HERE)


async def start(backend, heartbeat_s=0.0):
    specs = [WorkerSpec(f"role-{p.rank}", COUNTER, p, {"rank": p.rank}) for p in place((0, 1), detect())]
    return await Cluster.start("role", backend, specs, 60.0, start_s=110.0, heartbeat_s=heartbeat_s)


def control():
    """Name -> process id."""
    return {name: started[0].process.pid for name, started in ray_worker._global_node.all_processes.items()}


def resident_kib(pid: int) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
"""127.0.0.1 as the kernel writes it, by itself and in version 6."""


def listeners(pid: int) -> list[str]:
    """The addresses on which a process listens, as the kernel writes them; none if it has ended meanwhile."""
    try:
        sockets = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()}
        rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]]
    except FileNotFoundError:
        return []
    return [row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]


async def ends(pids) -> None:
    async with asyncio.timeout(20):
        while any(map(alive, pids)):
            await asyncio.sleep(0.05)


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_hung_workers_and_the_death_of_the_control_process(tmp_path):
    async def main():
        backend = RayBackend(detect(), logs=tmp_path / "logs")
        try:
            cluster = await start(backend)
            folder = Path(ray_worker._global_node.get_session_dir_path()).parents[1]
            assert folder.name.startswith("roll-ray-") and stat.S_IMODE(folder.stat().st_mode) == 0o700
            pids = control()
            assert sorted(pids) == ["gcs_server", "log_monitor", "raylet"], "neither dashboard nor autoscaler"
            agents = [agent.pid for agent in psutil.Process(pids["raylet"]).children()]
            titles = sorted(Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0] for pid in agents)
            assert [title[:11] for title in titles if title.startswith("ray::role")] == ["ray::role-0", "ray::role-1"]
            assert not [title for title in titles if "IDLE" in title], "no worker that nobody asked for"
            listening = [address for pid in descendants(os.getpid()) for address in listeners(pid)]
            assert len(listening) >= 7, "the driver, gcs_server, the raylet's two, its agent, two workers"
            assert set(listening) == LOOPBACK, listening

            before = resident_kib(pids["gcs_server"])
            for _ in range(60):
                await asyncio.gather(*(cluster.call(rank, "echo", i) for rank in (0, 1) for i in range(25)))
            await asyncio.sleep(2)  # Ray reports its history of calls every second
            grown = resident_kib(pids["gcs_server"]) - before
            print(f"gcs_server grew by {grown} KiB over 3000 calls")
            assert grown < 2000

            cluster = Cluster("role", cluster.workers, 60.0, heartbeat_s=3.0)
            watch = asyncio.ensure_future(cluster.watch())
            assert await cluster.call(0, "compute", 4.5) == "done"
            assert not watch.done(), "a busy worker is not a hung one"
            os.kill(await cluster.call(1, "process"), signal.SIGSTOP)
            with pytest.raises(WorkerDied, match=r"role-1 of role role has not answered for 3 s \(heartbeat_timeout\)"):
                await asyncio.wait_for(watch, 40)
            with pytest.raises(WorkerDied):
                await cluster.call(1, "add", 1)

            alone = Cluster("role", cluster.workers[:1], 60.0, heartbeat_s=3.0)
            blocked = asyncio.ensure_future(alone.call(0, "block"))
            with pytest.raises(WorkerDied, match=r"role-0 of role role has not answered for 3 s"):
                await asyncio.wait_for(alone.watch(), 40)
            with pytest.raises(WorkerDied):
                await blocked

            cluster = await start(backend)
            watch = asyncio.ensure_future(cluster.watch())
            await asyncio.sleep(0)
            os.kill(pids["gcs_server"], signal.SIGKILL)
            died = rf"Ray's gcs_server \(process {pids['gcs_server']}\) died \(killed by SIGKILL\).*its log is in"
            with pytest.raises(BackendLost, match=died):
                await asyncio.wait_for(watch, 5)
            workers = [worker.local_pid for worker in cluster.workers]
        finally:
            await backend.shutdown()
        await ends([*pids.values(), *agents, *workers])
        assert not folder.exists() and list((tmp_path / "logs").glob("gcs_server*"))

    asyncio.run(asyncio.wait_for(main(), 270))


@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("number", "how"),
    [(signal.SIGKILL, "killed by SIGKILL"), (signal.SIGSTOP, "it stood still for 1 s, and was killed")],
    ids=["SIGKILL", "SIGSTOP"],
)
def test_a_call_that_meets_the_death_of_the_raylet_names_it(monkeypatch, number, how):
    monkeypatch.setattr(ray_instance, "STOPPED_S", 1.0)

    async def main():
        backend = RayBackend(detect())
        try:
            cluster = await start(backend)
            raylet = control()["raylet"]
            agents = [agent.pid for agent in psutil.Process(raylet).children()]
            hanging = asyncio.ensure_future(cluster.call(0, "hang"))
            watch = asyncio.ensure_future(cluster.watch())
            await asyncio.sleep(0.2)
            os.kill(raylet, number)
            for waiting in (watch, hanging):
                with pytest.raises(BackendLost, match=rf"Ray's raylet \(process {raylet}\) died \({how}\)"):
                    await asyncio.wait_for(waiting, 40)
        finally:
            await backend.shutdown()
        await ends(agents)
        with pytest.raises(BackendLost, match="the run has ended its part in Ray"):
            await backend.start(WorkerSpec("late", COUNTER, place((0,), detect())[0], {"rank": 0}))
        assert not ray.is_initialized(), "a worker that is replaced late starts no other Ray"

    asyncio.run(asyncio.wait_for(main(), 190))


def test_a_long_folder_of_temporary_files_is_not_used(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * 60)
    assert ray_instance._parent() == Path("/tmp")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ValueError, match="set TMPDIR to a folder whose name has at most"):
        ray_instance._parent()


def node_with(**processes):
    """As Ray's `Node` keeps them."""
    return SimpleNamespace(all_processes={name: [SimpleNamespace(process=process)] for name, process in processes.items()})


def a_process(killed):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    if killed:
        process.kill()
        process.wait()
    return process


@pytest.mark.parametrize("dead", ["", "log_monitor", "a child of the program"])
def test_a_ray_that_needs_longer_than_ray_allows_is_waited_for_while_its_control_processes_live(monkeypatch, dead):
    asked = []

    def slow(address):
        asked.append(address)
        if len(asked) < 3:
            raise RuntimeError("no node yet")
        return {"node": address}

    monkeypatch.setattr(ray_instance.services, "get_node", slow)
    monkeypatch.setattr(ray_instance.time, "sleep", lambda _: None)
    monkeypatch.setattr(ray_instance.Node, "start_ray_processes", lambda _: None)
    with ray_instance._patiently():
        names = ("gcs_server", "raylet", "log_monitor", "a child of the program")
        processes = {name: a_process(killed=False) for name in names}
        if dead:
            processes[dead].kill()  # a zombie, as long as nobody asks for its exit code
        ray_instance.Node.start_ray_processes(node_with(**{name: processes[name] for name in names[:3]}))
        assert ray_instance.services.get_node("a") == {"node": "a"}
    assert asked == ["a"] * 3 and ray_instance.services.get_node is slow
    for process in processes.values():
        process.kill()
        process.wait()


@pytest.mark.parametrize("dead", ["gcs_server", "raylet"])
def test_a_ray_without_a_control_process_is_not_waited_for(monkeypatch, dead):
    def never(address):
        raise RuntimeError("no node")

    monkeypatch.setattr(ray_instance.services, "get_node", never)
    monkeypatch.setattr(ray_instance.Node, "start_ray_processes", lambda _: None)
    with ray_instance._patiently():
        ray_instance.Node.start_ray_processes(node_with(**{dead: a_process(killed=True)}))
        with pytest.raises(RuntimeError, match="no node"):
            ray_instance.services.get_node("a")


def test_a_control_process_that_stands_still_is_ended_also_after_looks_that_failed(monkeypatch):
    """As while the driver has no descriptor left."""
    monkeypatch.setattr(ray_instance, "LOOK_S", 0.02)
    monkeypatch.setattr(ray_instance, "STOPPED_S", 0.1)
    process_of, failures = psutil.Process, iter(range(3))

    def look(pid):
        if next(failures, None) is not None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), f"/proc/{pid}/stat")
        return process_of(pid)

    monkeypatch.setattr(psutil, "Process", look)
    processes = {name: a_process(killed=False) for name in ray_instance.CONTROL}
    instance = ray_instance.RayInstance(None, None)
    instance._control = processes
    processes["raylet"].send_signal(signal.SIGSTOP)
    watching = threading.Thread(target=instance._end_stopped)
    watching.start()
    try:
        assert processes["raylet"].wait(20) == -signal.SIGKILL
        assert "it stood still for 0.1 s, and was killed" in str(instance.why_lost())
    finally:
        instance._over.set()
        watching.join()
        for process in processes.values():
            process.kill()
            process.wait()


def test_a_ray_that_does_not_start_says_what_to_do(monkeypatch):
    def init(**_):
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray_instance.ray, "init", init)
    instance = ray_instance.RayInstance(None, None)
    with pytest.raises(
        RuntimeError, match=r"did not start: The current node timed out during startup\.; start it again when .*--local"
    ):
        instance.start()
    instance.stop()
    sys.modules.pop("backend_worker", None)
