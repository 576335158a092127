"""An engine that runs in another interpreter (`strategy_config.python`), for packages that pin against those of the trainer.

The process there hosts the same strategy class (`engine_host`), with this project's code and that interpreter's packages. It ends
with its worker, however that ends; when it is gone, calls raise `EngineError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import roll
from roll.distributed.own_folder import OwnFolder
from roll.strategies.infer.foreign.interpreter import dies_with_parent, environment
from roll.strategies.infer.foreign.messages import (
    error_of,
    pack,
    plain_request,
    read,
    read_blocking,
    result_of,
    stats_of,
)
from roll.strategies.infer.interface import (
    EngineClosed,
    EngineError,
    EngineStats,
    GenerateRequest,
    GenerateResult,
    WeightUpdateMode,
)
from roll.weights.bucket import Bucket, Manifest
from roll.weights.memory_file import write_memory_file

CLOSING_S = 30.0
"""For the process to end by itself when the engine is closed."""
_PROGRAM = (
    f"{dies_with_parent(signal.SIGKILL)}; import sys; from roll.strategies.infer.foreign.host import main; main(int(sys.argv[1]))"
)


class OtherInterpreterStrategy:
    """Implements `InferStrategy`. All methods belong to one event loop."""

    def __init__(self, python: str, strategy_name: str, options: Mapping[str, Any]) -> None:
        """Starts the engine and waits until it is ready. `options` as those of the strategy's class. What that raises is raised
        here; `EngineError` if the process ends instead."""
        self._what = f"the {strategy_name} engine in {python}"
        # Its path has our package alone: the folder that ours lies in may be full of other packages.
        self._path = OwnFolder("engine")
        (self._path.path / "roll").symlink_to(Path(roll.__file__).parent)
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [python, "-c", _PROGRAM, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is the run's, which ends its engines when it has saved
                env=environment() | {"PYTHONPATH": str(self._path.path)},
            )
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._ended: EngineError | None = None
        """Why the engine takes no more calls."""
        try:
            plain = {name: asdict(value) if is_dataclass(value) else value for name, value in options.items()}  # type: ignore[arg-type]
            self._connection.sendall(pack({"strategy": strategy_name, "options": plain}))
            answer = read_blocking(self._connection)
            if answer is None:
                raise EngineError(f"{self._what} ended with code {self._process.wait()} before it was ready")
            if "error" in answer:
                raise error_of(answer["error"])
        except BaseException:
            self._end_process()
            raise

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        return result_of(await self._call("generate", plain_request(request)))

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        await self._call("abort", None if request_ids is None else list(request_ids))

    async def receive_bucket(self, version: int, bucket: Bucket) -> None:
        file = await asyncio.to_thread(write_memory_file, bucket.tensors)
        try:
            await self._call("receive_bucket", version, f"/proc/{os.getpid()}/fd/{file}", bucket.checksum)
        finally:
            os.close(file)

    async def activate_weights(self, manifest: Manifest, mode: WeightUpdateMode) -> float:
        pause: float = await self._call("activate_weights", asdict(manifest), mode)
        return pause

    async def sleep(self) -> None:
        await self._call("sleep")

    async def wake(self) -> None:
        await self._call("wake")

    async def stats(self) -> EngineStats:
        return stats_of(await self._call("stats"))

    async def close(self) -> None:
        if isinstance(self._ended, EngineClosed):
            return
        if self._ended is None:
            with contextlib.suppress(EngineError, TimeoutError):  # it dies, or hangs: the process is ended below
                await asyncio.wait_for(self._call("close"), CLOSING_S)  # which ends the calls that wait
        self._end(EngineClosed("the inference engine was closed"))
        if self._writer is not None:
            self._writer.close()
        await asyncio.to_thread(self._end_process, CLOSING_S)

    async def _call(self, method: str, *arguments: Any) -> Any:
        """Cancelling it cancels the call there."""
        writer = await self._connected()
        if self._ended is not None:
            raise self._ended
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            writer.write(pack({"call": number, "method": method, "arguments": arguments}))
            return await answer
        except asyncio.CancelledError:
            writer.write(pack({"cancel": number}))
            raise
        finally:
            del self._waiting[number]

    async def _connected(self) -> asyncio.StreamWriter:
        async with self._connecting:
            if self._writer is None:
                reader, self._writer = await asyncio.open_connection(sock=self._connection)
                self._listening = asyncio.create_task(self._listen(reader))
        return self._writer

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while (frame := await read(reader)) is not None:
            answer = self._waiting.get(frame["call"])
            if answer is None or answer.done():  # cancelled meanwhile
                continue
            if "error" in frame:
                answer.set_exception(error_of(frame["error"]))
            else:
                answer.set_result(frame["result"])
        if self._ended is None:
            code = await asyncio.to_thread(self._process.wait)
            self._end(EngineError(f"{self._what} ended with code {code} (its own messages are above)"))

    def _end(self, why: EngineError) -> None:
        self._ended = why
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(why)

    def _end_process(self, patience_s: float = 0.0) -> None:
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._connection.close()
        self._path.remove()
