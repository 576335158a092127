"""An SGLang server as a child process of another interpreter: command line, environment, start, end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from roll.core.errors import EngineError
from roll.platform.child import end_process, start_process
from roll.platform.interpreters import environment
from roll.platform.ports import free_port
from roll.platform.temp_folder import TempFolder, own_package, temporary_files_in
from roll.platform.visible_devices import only
from roll.strategies.infer.sglang.arguments import INSTALL, STARTUP_TIMEOUT_S, interpreter

CPU_SHIMS = Path(__file__).parents[2] / "cpu_shims" / "sglang"
END_S = 5.0
LOG_LINES = 12
"""Lines of the server's log that an error shows."""

_LAUNCH = "os.execv(sys.executable, [sys.executable, '-m', 'sglang.launch_server', *sys.argv[1:]])"


def command_line(arguments: Mapping[str, object]) -> list[str]:
    """`{"tp_size": 2, "disable_radix_cache": True}` -> `--tp-size 2 --disable-radix-cache`. None and False leave a flag out."""
    words: list[str] = []
    for name, value in arguments.items():
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words += [str(part) for part in value] if isinstance(value, (list, tuple)) else [str(value)]
    return words


def server_environment(devices: Sequence[str], threads: int, package: Path) -> dict[str, str]:
    """`devices`: as this process counts them; the server counts its own from 0. `package`: a folder that has this project's
    package alone, for `loader`."""
    on_cpu = devices[0] == "cpu"
    env = environment() | {
        "OMP_NUM_THREADS": str(threads),
        # The places of `SPARE` are never computed, so a text may have as many tokens as the model takes.
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
        "PYTHONPATH": os.pathsep.join(map(str, [*([CPU_SHIMS] if on_cpu else []), package])),
    }
    if not on_cpu:
        return env | only(devices)
    # A helper for log-probs is compiled at the first request otherwise, which takes half a minute.
    return env | {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}


def start_server(given: Mapping[str, Any], arguments: Mapping[str, Any], devices: Sequence[str], threads: int) -> SGLangServer:
    """Starts the server in the interpreter of `strategy_config`, which is `given`. Raises `ValueError` if there is none."""
    if (python := interpreter(given.get("python"))) is None:
        raise ValueError(f"there is no SGLang on this machine: {INSTALL}")
    return SGLangServer(python, arguments, devices, threads, given.get("startup_timeout_s", STARTUP_TIMEOUT_S))


class SGLangServer:
    def __init__(self, python: str, arguments: Mapping[str, Any], devices: Sequence[str], threads: int, timeout_s: float) -> None:
        """Starts `python -m sglang.launch_server` on a free loopback port and waits until it serves. Raises `EngineError`."""
        port, key = free_port(), secrets.token_hex(32)
        self.url = f"http://127.0.0.1:{port}"
        self.headers = {"Authorization": f"Bearer {key}"}
        """Headers of every request: the port is open to the machine's other users."""
        self._folder = TempFolder("sglang")  # readable by this user only
        self._package = own_package("path")
        self._log = self._folder.path / "server.log"
        # Not among the arguments, which everybody can read. With the second key alone generating would be open to all, and so
        # would be a route that reveals the key.
        keys = self._folder.path / "keys.yaml"
        keys.write_text(json.dumps({"api-key": key, "admin-api-key": key}))
        words = command_line({**arguments, "host": "127.0.0.1", "port": port, "config": keys})
        with self._log.open("wb") as log:
            variables = server_environment(devices, threads, self._package.path) | temporary_files_in(self._folder.path)
            self._process = start_process(python, _LAUNCH, words, variables, ends_by=signal.SIGTERM, output=log)
        try:
            self._wait_until_ready(timeout_s)
        except BaseException:
            self.close()
            raise

    def client(self) -> httpx.AsyncClient:
        """A response may take as long as it takes: the caller's own deadline (rpc_timeout) ends the wait. Every call has a
        connection of its own: a kept one may be closed by the server just when it is used again."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        return httpx.AsyncClient(base_url=self.url, headers=self.headers, timeout=None, limits=limits, trust_env=False)

    async def post(self, client: httpx.AsyncClient, route: str, body: Mapping[str, Any]) -> Any:
        """Returns the answer's JSON. SGLang reports many a refusal with `success: false` only. Raises `EngineError`."""
        try:
            response = await client.post(f"/{route}", json=body)
        except httpx.TransportError as error:
            if await asyncio.to_thread(self._ends):
                raise self.failure("is gone") from error
            raise
        answer: Any = None
        with contextlib.suppress(ValueError):
            answer = response.json()
        refused = isinstance(answer, dict) and answer.get("success") is False
        if refused or response.status_code != 200:
            raise RuntimeError(f"SGLang refused /{route} ({response.status_code}): {response.text[:500]}")
        return answer

    def _ends(self) -> bool:
        """Waits a while: connections are gone before the process is."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        return not self.alive

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def failure(self, what: str) -> EngineError:
        lines = self._log.read_text(errors="replace").strip().splitlines()[-LOG_LINES:]
        return EngineError(f"SGLang {what}; its log ends:\n" + "\n".join(lines))

    def give_up(self, why: str) -> EngineError:
        """Kills the server. Returns the error to raise."""
        end_process(self._process)
        return self.failure(why)

    def close(self) -> None:
        end_process(self._process, 5.0, asking=signal.SIGTERM)
        self._folder.remove()
        self._package.remove()

    def _wait_until_ready(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        with httpx.Client(base_url=self.url, timeout=2.0, trust_env=False) as client:
            while True:
                if not self.alive:
                    raise self.failure(f"ended with code {self._process.returncode} before it was ready")
                try:
                    if client.get("/health").status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                if time.monotonic() > deadline:
                    raise self.failure(f"was not ready after {timeout_s:.0f} s (startup_timeout_s)")
                time.sleep(0.2)
