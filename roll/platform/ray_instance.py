"""A Ray instance of the run's own: private, small, watched, and gone when the driver is.

Its files lie in a folder that only this user can enter (Ray itself opens its folder to everybody), its ports are on the loopback
interface. Neither dashboard nor autoscaler is started, nor a worker for each core, which would stay idle; and no history of calls
is kept, which would grow by the step. The driver watches Ray's control processes, for Ray takes a minute to notice the death of
one and then ends the driver on the spot.

Ray has no documented way to any of this: `ray start --head`, too, starts the dashboard's server, listens on all interfaces and
gives up after 30 s. So some of its private names stand here, and its version is pinned.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private import ray_constants, services
from ray._private import worker as ray_worker
from ray._private.authentication.authentication_token_generator import generate_new_authentication_token
from ray._private.node import Node
from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]

from roll.core.errors import BackendLost
from roll.platform.ray_nodes import STOPPED, own_path_first
from roll.platform.temp_folder import TempFolder
from roll.platform.watchdog import Watchdog

LOOK_S = 0.5
TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
CONTROL = ("gcs_server", "raylet")
"""The processes without which Ray cannot work."""
STOPPED_S = 30.0
"""One that stands still for so long is killed: it would never answer, and its callers would wait."""
START_S = 300.0
"""Time for the raylet to come up. Ray gives up after 30 s, which a cold and busy machine exceeds."""
LONGEST_SOCKET = 107
_BELOW = len("/roll-ray-12345678/t/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")


class RayInstance:
    def __init__(self, watchdog: Watchdog | None, logs: Path | None) -> None:
        """`watchdog`: ends the rest of the instance if the driver is killed. `logs`: folder for Ray's logs if it fails."""
        self._watchdog = watchdog
        self._logs = logs
        self._folder: TempFolder | None = None
        self._users_token: str | None = None
        self._control: dict[str, subprocess.Popen[bytes]] = {}
        self._agents: list[psutil.Process] = []
        """Children of the raylet. They outlive it by a minute if they are let."""
        self._watching: asyncio.Task[None] | None = None
        self._over = threading.Event()
        self._stood_still: set[str] = set()

    def start(self) -> None:
        """Raises `ValueError` if there is no folder for it, `RuntimeError` if Ray does not start; both name a fix."""
        self._folder = TempFolder("ray", _parent())
        if self._watchdog is not None:
            self._watchdog.removes(self._folder.path)
        try:
            self._use_own_token(self._folder.path)
            before = set(psutil.Process().children())
            with _only_what_is_needed(), _on_the_loopback_interface(), _patiently():
                ray.init(
                    address="local",
                    include_dashboard=False,
                    configure_logging=False,
                    job_config=own_path_first(),
                    _temp_dir=str(self._folder.path / "t"),
                    _system_config={"task_events_report_interval_ms": 0, "prestart_worker_first_driver": False},
                )
        except Exception as error:  # boundary: Ray raises bare exceptions here
            _kill({*psutil.Process().children()} - before)  # what it had started, and forgets
            why = " ".join(str(error).split())[:300]
            advice = (
                "start it again when the machine is less busy, look for other Ray processes (ps aux | grep ray), or use --local"
            )
            raise RuntimeError(f"Ray did not start: {why}; {advice}") from error
        self._control = _processes_of(ray_worker._global_node)
        with contextlib.suppress(psutil.NoSuchProcess):  # `why_lost` will say so
            self._agents = psutil.Process(self._control["raylet"].pid).children()
        self.ends_with_driver([process.pid for process in (*self._control.values(), *self._agents)])
        threading.Thread(target=self._end_stopped, name="ray", daemon=True).start()

    def _use_own_token(self, folder: Path) -> None:
        """Makes a token, which allows to run code here: it lies in the instance's folder and goes with it. In the user's own
        (`~/.ray/auth_token`) it would close each cluster that is started later to nodes that do not know it."""
        token = folder / "token"
        token.write_text(generate_new_authentication_token())
        self._users_token = os.environ.get(TOKEN_PATH)
        self._use_token(str(token))

    def _use_token(self, path: str | None) -> None:
        """Ray reads it once in the life of a process, unless it is told that there is another."""
        os.environ.pop(TOKEN_PATH, None)
        if path is not None:
            os.environ[TOKEN_PATH] = path
        AuthenticationTokenLoader.instance().reset_cache()

    def ends_with_driver(self, pids: list[int]) -> None:
        """Has these processes of the instance end with the driver, whatever ends it."""
        if self._watchdog is not None:
            self._watchdog.kills(pids)

    def why_lost(self) -> BackendLost | None:
        """Returns the error when a process without which Ray cannot work is gone."""
        if (name := _ended(self._control)) is None:
            return None
        process = self._control[name]
        how = (
            f"killed by {signal.Signals(-process.returncode).name}"
            if process.returncode < 0
            else f"exit code {process.returncode}"
        )
        if name in self._stood_still:
            how = f"it stood still for {STOPPED_S:g} s, and was killed"
        kept = f"; its log is in {self._logs}" if self._logs is not None else ""
        return BackendLost(f"Ray's {name} (process {process.pid}) died ({how}): no worker can be reached any more{kept}")

    async def reached(self) -> None:
        """Raises `BackendLost` if Ray cannot be reached any more."""
        if self._over.is_set():  # the next call of an actor would start another Ray, which nothing ends
            raise BackendLost(STOPPED)
        if (lost := self.why_lost()) is not None:
            raise lost

    async def lost(self) -> None:
        """Returns when `why_lost` has an answer."""
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch())
        await asyncio.wait({self._watching})

    async def _watch(self) -> None:
        while self.why_lost() is None:
            await asyncio.sleep(LOOK_S)

    def _end_stopped(self) -> None:
        """Kills stopped processes, in a thread: the event loop itself may wait for one of them."""
        looks = Counter[str]()
        while not self._over.wait(LOOK_S):
            for name in CONTROL:
                looks[name] = looks[name] + 1 if _is_stopped(self._control[name].pid) else 0
                if looks[name] * LOOK_S >= STOPPED_S:
                    self._stood_still.add(name)
                    self._control[name].kill()

    def stop(self) -> None:
        self._over.set()
        if self._watching is not None:
            self._watching.cancel()
        if self._logs is not None and self._folder is not None and self.why_lost() is not None:
            with contextlib.suppress(OSError, shutil.Error):
                (session,) = (self._folder.path / "t").glob("session_[0-9]*")
                shutil.copytree(session / "logs", self._logs, dirs_exist_ok=True)
        ray.shutdown()
        _kill(self._agents)
        if self._folder is not None:
            self._folder.remove()
            self._use_token(self._users_token)


@contextlib.contextmanager
def _only_what_is_needed() -> Iterator[None]:
    """Keeps Ray from starting its dashboard's server and its autoscaler, whatever its configuration: 200 MB, a second, and a port
    on all interfaces."""
    unwanted = {name: getattr(Node, name) for name in ("start_api_server", "start_monitor") if hasattr(Node, name)}
    for name in unwanted:
        setattr(Node, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name, method in unwanted.items():
            setattr(Node, name, method)


@contextlib.contextmanager
def _on_the_loopback_interface() -> Iterator[None]:
    """Has Ray listen on 127.0.0.1 alone, as it does where it is told that it forms no cluster, its default on other systems than
    Linux. If it is given that address instead, it takes the machine's, and listens on all interfaces."""
    clusters = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = clusters


def _processes_of(node: Any) -> dict[str, subprocess.Popen[bytes]]:
    """Returns the processes that Ray started in this process, by Ray's own names."""
    started: dict[str, Any] = node.all_processes
    return {name: each[0].process for name, each in started.items()}


def _ended(processes: Mapping[str, subprocess.Popen[bytes]]) -> str | None:
    """Returns the name of one that has ended and without which Ray cannot work."""
    return next((name for name in CONTROL if name in processes and processes[name].poll() is not None), None)


def _is_stopped(pid: int) -> bool:
    """Returns True for a stopped process. False where it cannot be read, as while this process can open no file: the next look
    will tell."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except (psutil.NoSuchProcess, OSError):
        return False


def _kill(processes: Iterable[psutil.Process]) -> None:
    """Kills them, but spares one whose number was given to another process meanwhile."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@contextlib.contextmanager
def _patiently() -> Iterator[None]:
    """Extends Ray's question for its node, which gives up after 30 s and cannot be configured: it takes as long as it needs,
    while the processes live without which the node cannot come up. Others of this process may end: Ray's log monitor gives up on
    a busy machine, and the program has children of its own."""
    ask, begin = services.get_node, Node.start_ray_processes
    nodes: list[Node] = []

    def start_ray_processes(node: Node) -> None:
        nodes.append(node)
        begin(node)

    def get_node(*args: object, **kwargs: object) -> object:
        end = time.monotonic() + START_S
        while True:
            try:
                return ask(*args, **kwargs)
            except RuntimeError:  # not there yet
                if time.monotonic() > end or any(_ended(_processes_of(node)) for node in nodes):
                    raise
                time.sleep(0.5)

    Node.start_ray_processes = start_ray_processes  # type: ignore[method-assign]
    services.get_node = get_node
    try:
        yield
    finally:
        services.get_node = ask
        Node.start_ray_processes = begin  # type: ignore[method-assign]


def _parent() -> Path:
    """Returns the parent of the instance's folder: the folder of temporary files, or one whose name leaves room for the names of
    Ray's sockets."""
    asked = tempfile.gettempdir()
    for parent in (asked, "/tmp", "/var/tmp", "/dev/shm"):
        if len(os.path.abspath(parent)) + _BELOW <= LONGEST_SOCKET and os.access(parent, os.W_OK | os.X_OK):
            return Path(os.path.abspath(parent))
    room = LONGEST_SOCKET - _BELOW
    raise ValueError(f"{asked} is too long for Ray's sockets: set TMPDIR to a folder whose name has at most {room} characters")
