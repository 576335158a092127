"""The far side of `other_interpreter`: an `InferStrategy` as a process of the interpreter that has its packages."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import asdict
from typing import Any

from safetensors import safe_open

from roll.strategies.infer import make_infer_strategy
from roll.strategies.infer.foreign.messages import Frame, pack, plain_error, read, read_blocking, request_of
from roll.strategies.infer.interface import InferStrategy, WeightUpdateMode
from roll.weights.adapter import AdapterSource
from roll.weights.bucket import Bucket, Manifest


class EngineHost:
    """Answers calls, many at once, until the worker is gone or has closed the engine."""

    def __init__(self, strategy: InferStrategy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._strategy = strategy
        self._reader = reader
        self._writer = writer
        self._running: dict[int, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        while (frame := await read(self._reader)) is not None:
            if (cancelled := frame.get("cancel")) is not None:
                if cancelled in self._running:
                    self._running[cancelled].cancel()
            else:
                number = frame["call"]
                self._running[number] = asyncio.create_task(self._answer(number, frame["method"], frame["arguments"]))
        await self._strategy.close()

    async def _answer(self, number: int, method: str, arguments: list[Any]) -> None:
        answer: Frame
        try:
            answer = {"result": await getattr(self, f"call_{method}")(*arguments)}
        except Exception as error:  # the boundary: whatever it is, the worker that called has to hear of it
            answer = {"error": plain_error(error)}
        finally:
            del self._running[number]
        self._writer.write(pack({"call": number} | answer))
        await self._writer.drain()

    async def call_generate(self, request: Frame) -> Frame:
        return asdict(await self._strategy.generate(request_of(request)))

    async def call_abort(self, request_ids: list[str] | None) -> None:
        await self._strategy.abort(request_ids)

    async def call_receive_bucket(self, version: int, path: str, checksum: int) -> None:
        with safe_open(path, framework="pt") as file:
            bucket = Bucket({name: file.get_tensor(name) for name in file.offset_keys()}, checksum)
        await self._strategy.receive_bucket(version, bucket)

    async def call_activate_weights(self, manifest: Frame, mode: WeightUpdateMode) -> float:
        return await self._strategy.activate_weights(Manifest(**manifest), mode)

    async def call_sleep(self) -> None:
        await self._strategy.sleep()

    async def call_wake(self) -> None:
        await self._strategy.wake()

    async def call_stats(self) -> Frame:
        return asdict(await self._strategy.stats())

    async def call_close(self) -> None:
        await self._strategy.close()


def main(descriptor: int) -> None:
    """`descriptor`: of the connection to the worker."""
    connection = socket.socket(fileno=descriptor)
    start = read_blocking(connection)
    if start is None:
        return
    options = start["options"]
    if options.get("adapters") is not None:
        options["adapters"] = AdapterSource(**options["adapters"])
    try:
        strategy = make_infer_strategy(start["strategy"], options)
    except Exception as error:  # the boundary, as above
        connection.sendall(pack({"call": 0, "error": plain_error(error)}))
        return
    connection.sendall(pack({"call": 0, "result": None}))
    asyncio.run(_serve(strategy, connection))


async def _serve(strategy: InferStrategy, connection: socket.socket) -> None:
    await EngineHost(strategy, *await asyncio.open_connection(sock=connection)).serve()
