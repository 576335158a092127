"""Between a client and a server: it passes bytes on until it is told to stop, or sees what the test waits for."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable

Rule = Callable[[bytes], str]
"""What becomes of bytes that a client sends: "" (they pass), "stall" (they do not, nor anything after them on any connection),
"close" (they do not, and the connection ends), "swallow" (they pass, and the connection ends instead of the answer)."""


class Proxy:
    """`with Proxy(host, port) as proxy`; `proxy.port` is for the client."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self.rule: Rule = lambda data: ""
        self.seen = 0
        """How often the rule said something."""
        self._open = threading.Event()
        self._open.set()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()

    def __enter__(self) -> Proxy:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.forward()
        self._listener.close()
        self.cut()

    def stall(self) -> None:
        """Connections stay, and nothing passes any more."""
        self._open.clear()

    def forward(self) -> None:
        self.rule = lambda data: ""
        self._open.set()

    def cut(self) -> None:
        """Ends all connections."""
        for pair in list(self._pairs):
            self._end(pair)

    def on(self, text: bytes, what: str, times: int = 1) -> None:
        """The next so many times that a client's bytes have the text in them."""
        left = [times]

        def rule(data: bytes) -> str:
            if text not in data or not left[0]:
                return ""
            left[0] -= 1
            self.seen += 1
            return what

        self.rule = rule

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._open.wait()
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        pair = client, server
        self._pairs.add(pair)
        with contextlib.suppress(OSError, ValueError), selectors.DefaultSelector() as ready:
            ready.register(client, selectors.EVENT_READ)
            ready.register(server, selectors.EVENT_READ)
            while self._passes(pair, {key.fileobj for key, _ in ready.select()}):
                pass
        self._end(pair)

    def _passes(self, pair: tuple[socket.socket, socket.socket], ready: set[object]) -> bool:
        client, server = pair
        if client in ready:
            data = client.recv(1 << 16)
            what = self.rule(data)
            if what == "stall":
                self.stall()
            self._open.wait()
            if not data or what == "close":
                return False
            server.sendall(data)
            if what == "swallow":
                server.recv(1 << 16)
                return False
        if server in ready:
            data = server.recv(1 << 16)
            self._open.wait()
            if not data:
                return False
            client.sendall(data)
        return True

    def _end(self, pair: tuple[socket.socket, socket.socket]) -> None:
        self._pairs.discard(pair)
        for each in pair:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
