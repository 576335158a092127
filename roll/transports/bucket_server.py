"""Buckets that stay in a trainer's memory, handed over TCP to the engines of other processes, each of which fetches by itself.

A connection carries one bucket. Both sides prove that they know the run's key without sending it; the bytes themselves are not
encrypted. Nothing is unpickled: a bucket travels in the layout of safetensors, and its checksum is verified where it arrives.

    server → engine   challenge
    engine → server   challenge, proof, (version, number of the bucket)
    server → engine   proof, (bytes of the header, bytes of the tensors), header, tensors
"""

from __future__ import annotations

import hmac
import json
import logging
import math
import os
import platform
import secrets
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from roll.core.distributed.processes import network
from roll.core.errors import Unreachable
from roll.core.weights.bucket import Bucket
from roll.core.weights.layout import as_bytes, lay_out
from roll.transports.packed import read_layout

TIMEOUT_S = 30.0
"""For each exchange, not for a bucket as a whole."""
HANDSHAKE_S = 10.0
"""For all that a connection says before it is known, however slowly."""
MOST_STRANGERS = 128
"""So many connections may not be known yet. Beyond that the oldest is ended, ..."""
GRACE_S = 1.0
"""... if it has had so long; else the next one waits."""
WARN_S = 60.0
"""No two warnings about connections that were refused are closer."""
LOOPBACKS = ("127.0.0.1", "::1", "localhost")
PIECE = 1 << 22
"""Bytes that are sent within one exchange."""
SECRET = 32
"""Bytes of a key, of a challenge and of a proof."""
ASKED, ANSWERED = struct.Struct("<qq"), struct.Struct("<QQ")
Find = Callable[[int, int], Bucket | None]
"""`find(version, number)` blocks, and is None if the bucket is not there."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server's address, and the key that it shares with its readers."""

    host: str
    port: int
    key: str = field(repr=False)
    machine: str = field(default_factory=platform.node)
    """The name of the server's machine, for people."""
    network: str = field(default_factory=network)

    def write(self, path: Path) -> None:
        """The file can be read by its owner alone."""
        aside = path.with_suffix(".partial")
        aside.unlink(missing_ok=True)
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(asdict(self), file)
        os.replace(aside, path)

    @classmethod
    def read(cls, path: Path) -> ServerAddress:
        """Raises `Unreachable` if there is no such file, and `ValueError` if it was not written by `write`."""
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise Unreachable(f"{path} is not there: no trainer serves weights") from None
        except (ValueError, RecursionError):
            found = None
        kinds = {"host": str, "port": int, "key": str, "machine": str, "network": str}
        if not isinstance(found, dict) or {name: type(value) for name, value in found.items()} != kinds:
            said = f"an object with {', '.join(kinds)}"
            raise ValueError(
                f"{path} is not {said}: another version wrote it, or it is damaged; a trainer writes it when it starts"
            )
        return cls(**found)

    def check(self) -> None:
        """Raises `ValueError` if this process can never reach it, as it is."""
        here = network()
        if self.host in LOOPBACKS and "" not in (here, self.network) and here != self.network:
            raise ValueError(
                f"the trainer on {self.machine} serves weights at {self.host}, which no other machine reaches: start it with "
                f"weights_address=<its address for explorers>, {self.machine} for example"
            )

    def prove(self, challenge: bytes, message: bytes) -> bytes:
        return hmac.digest(self.key.encode(), challenge + message, "sha256")

    def ask(self, version: int, number: int) -> tuple[bytes, torch.Tensor]:
        """A bucket's header and tensors. Blocks. Raises `Unreachable`."""
        try:
            with socket.create_connection((self.host, self.port), TIMEOUT_S) as connection:
                return self._ask(connection, ASKED.pack(version, number))
        except OSError as error:
            what = f"bucket {number} of version {version}"
            hint = "; does a firewall drop what goes to this port (weights_address)?" if isinstance(error, TimeoutError) else ""
            raise Unreachable(f"{what} cannot be fetched from {self.host}:{self.port}: {error}{hint}") from error

    def _ask(self, connection: socket.socket, asked: bytes) -> tuple[bytes, torch.Tensor]:
        challenge = secrets.token_bytes(SECRET)
        proof = self.prove(_receive(connection, SECRET), asked)
        connection.sendall(challenge + proof + asked)
        proof, answered = _receive(connection, SECRET), _receive(connection, ANSWERED.size)
        if not hmac.compare_digest(proof, self.prove(challenge, answered)):
            raise ConnectionError("the server has another key")
        header_bytes, nbytes = ANSWERED.unpack(answered)
        if not header_bytes:
            raise ConnectionError("the server does not have it")
        header, content = _receive(connection, header_bytes), torch.empty(nbytes, dtype=torch.uint8)
        _receive_into(connection, content.numpy().data)
        return header, content


@dataclass(frozen=True, slots=True)
class ServedBucket:
    """A bucket that a server has; a plain value, which an engine's worker uses to fetch it."""

    endpoint: ServerAddress
    version: int
    number: int
    names: tuple[str, ...]
    checksum: int
    nbytes: int

    @property
    def argument(self) -> ServedBucket:
        return self

    def read(self) -> Bucket:
        """Fetches the bucket; `verify` of the bucket detects changed bytes. Blocks. Raises `Unreachable`, and `ValueError` if the
        server has other tensors under this number."""
        tensors, _ = read_layout(*self.endpoint.ask(self.version, self.number))
        if tensors.keys() != set(self.names):
            what = f"bucket {self.number} of version {self.version}"
            raise ValueError(f"{what}, as served, has tensors {sorted(tensors)} instead of {sorted(self.names)}")
        return Bucket({name: tensors[name] for name in self.names}, self.checksum)


class Strangers:
    """The connections that have not proved yet that they know the key. Each has a thread: there are `MOST_STRANGERS` at most."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._here: dict[socket.socket, tuple[float, str]] = {}
        """Since when, and from where; the oldest first."""
        self._refused = 0
        self._warned_at = -math.inf

    def enter(self, connection: socket.socket, host: str) -> None:
        """Blocks until there is room, for `GRACE_S` at most."""
        with self._changed:
            while len(self._here) >= MOST_STRANGERS:
                oldest, (since, whose) = next(iter(self._here.items()))
                if (left := since + GRACE_S - time.monotonic()) > 0:
                    self._changed.wait(left)
                    continue
                del self._here[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread ends, and closes it
                self.refused(whose)
            self._here[connection] = time.monotonic(), host

    def leave(self, connection: socket.socket) -> None:
        with self._changed:
            self._here.pop(connection, None)
            self._changed.notify()

    def refused(self, host: str) -> None:
        """Many of them make one warning."""
        with self._changed:
            self._refused += 1
            if time.monotonic() - self._warned_at < WARN_S:
                return
            count, self._refused, self._warned_at = self._refused, 0, time.monotonic()
        logger.warning("%s asked for weights without the run's key (%d refused since the last warning)", host, count)


def listener(host: str, port: int) -> socket.socket:
    """Raises `OSError` if this machine has no such address, or the port is another's."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a trainer that is started again has the same
        opened.bind(address)
    except BaseException:
        opened.close()
        raise
    return opened


class BucketServer(socketserver.ThreadingTCPServer):
    """Serves the buckets that `find` has in threads of its own until it is closed. Raises `OSError` if it cannot listen."""

    daemon_threads, block_on_close, request_queue_size = True, False, 128

    def __init__(self, host: str, find: Find, port: int = 0) -> None:
        """Port 0: the system chooses."""
        self.find = find
        self.strangers = Strangers()
        opened = listener(host, port)
        self.address_family = opened.family
        super().__init__(opened.getsockname()[:2], _Request, bind_and_activate=False)
        self.socket.close()
        self.socket = opened
        self.server_activate()
        self.endpoint = ServerAddress(host, int(opened.getsockname()[1]), secrets.token_hex(SECRET))
        self._thread = threading.Thread(target=self.serve_forever, name="weights", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        self.strangers.enter(request, client_address[0])
        return True

    def handle_error(self, request: object, client_address: object) -> None:
        logger.exception("weights were not handed over to %s", client_address)


class _Request(socketserver.BaseRequestHandler):
    server: BucketServer

    def handle(self) -> None:
        connection: socket.socket = self.request
        with suppress(ConnectionError, TimeoutError):  # the reader is gone, and asks again if it needs to
            self._answer(connection)

    def finish(self) -> None:
        self.server.strangers.leave(self.request)

    def _answer(self, connection: socket.socket) -> None:
        theirs, asked, known = self._asked(connection)
        bucket = self.server.find(*ASKED.unpack(asked)) if known else None
        layout = lay_out(bucket.tensors) if bucket is not None else None
        answered = ANSWERED.pack(len(layout.header), layout.nbytes) if layout is not None else ANSWERED.pack(0, 0)
        connection.sendall(self.server.endpoint.prove(theirs, answered) + answered)
        if layout is not None:
            connection.sendall(layout.header)
            for content in (as_bytes(tensor).numpy().data for tensor in layout.tensors):
                for start in range(0, len(content), PIECE):
                    connection.sendall(content[start : start + PIECE])

    def _asked(self, connection: socket.socket) -> tuple[bytes, bytes, bool]:
        """The other side's challenge and question, and whether it knows the key."""
        challenge, until = secrets.token_bytes(SECRET), time.monotonic() + HANDSHAKE_S
        strangers, host = self.server.strangers, self.client_address[0]
        try:
            connection.settimeout(HANDSHAKE_S)
            connection.sendall(challenge)
            theirs, proof, asked = (_receive(connection, size, until) for size in (SECRET, SECRET, ASKED.size))
        except TimeoutError:
            strangers.refused(host)
            raise
        finally:
            strangers.leave(connection)
        if not (known := hmac.compare_digest(proof, self.server.endpoint.prove(challenge, asked))):
            strangers.refused(host)
        connection.settimeout(TIMEOUT_S)
        return theirs, asked, known


def _receive(connection: socket.socket, size: int, until: float = math.inf) -> bytes:
    received = bytearray(size)
    _receive_into(connection, memoryview(received), until)
    return bytes(received)


def _receive_into(connection: socket.socket, room: memoryview, until: float = math.inf) -> None:
    """Raises `ConnectionError` if the other side ends before the room is full, and `TimeoutError` if it is not at `until`."""
    missing = room
    while missing:
        if until < math.inf:
            connection.settimeout(max(until - time.monotonic(), 0.001))
        if not (count := connection.recv_into(missing)):
            raise ConnectionError(f"the connection ended after {len(room) - len(missing):,} of {len(room):,} bytes")
        missing = missing[count:]
