"""What goes between a worker and an engine in a process of another interpreter: JSON in frames over a socket pair.

    worker → engine   {"strategy", "options"}, then calls {"call": n, "method", "arguments"} and {"cancel": n}
    engine → worker   {"call": n, "result"} or {"call": n, "error": [type, text]}; the first frame answers the start, as call 0

Weights do not: a bucket is a memory file, of which the frame has the path.
"""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import asdict
from typing import Any

from roll.data.sample import VersionSpan
from roll.strategies.infer.interface import (
    EngineClosed,
    EngineError,
    EngineStats,
    GenerateRequest,
    GenerateResult,
    SamplingParams,
)

LENGTH = 8
"""Bytes before each frame that say how long it is."""
ERRORS: dict[str, type[Exception]] = {error.__name__: error for error in (ValueError, EngineError, EngineClosed, RuntimeError)}
"""Those that keep their type on the way."""

Frame = dict[str, Any]


def pack(frame: Frame) -> bytes:
    content = json.dumps(frame).encode()
    return len(content).to_bytes(LENGTH, "little") + content


async def read(reader: asyncio.StreamReader) -> Frame | None:
    """The next frame; None if the other side is gone."""
    try:
        length = int.from_bytes(await reader.readexactly(LENGTH), "little")
        frame: Frame = json.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return frame


def read_blocking(connection: socket.socket) -> Frame | None:
    """`read`, of a socket that nobody reads from otherwise."""
    length = _exactly(connection, LENGTH)
    content = _exactly(connection, int.from_bytes(length, "little")) if length else b""
    return json.loads(content) if content else None


def _exactly(connection: socket.socket, count: int) -> bytes:
    """As many bytes; none if the other side is gone."""
    content = bytearray()
    while len(content) < count:
        try:
            part = connection.recv(count - len(content))
        except ConnectionError:
            part = b""
        if not part:
            return b""
        content += part
    return bytes(content)


def plain_error(error: Exception) -> list[str]:
    name = next((known.__name__ for known in type(error).__mro__ if known.__name__ in ERRORS), "RuntimeError")
    text = str(error)
    return [name, text if type(error).__name__ in ERRORS else f"{type(error).__name__}: {text}"]


def error_of(plain: list[str]) -> Exception:
    name, text = plain
    return ERRORS[name](text)


def plain_request(request: GenerateRequest) -> Frame:
    return asdict(request)


def request_of(plain: Frame) -> GenerateRequest:
    sampling = plain["sampling"]
    sampling |= {name: tuple(sampling[name]) for name in ("stop_token_ids", "stop_strings")}
    lists = {name: tuple(plain[name]) for name in ("prompt_ids", "partial_ids")}
    return GenerateRequest(**(plain | lists | {"sampling": SamplingParams(**sampling)}))


def result_of(plain: Frame) -> GenerateResult:
    return GenerateResult(**(plain | {"versions": [VersionSpan(*span) for span in plain["versions"]]}))


def stats_of(plain: Frame) -> EngineStats:
    return EngineStats(**plain)
