"""The server of `roll ui`: a free port of loopback, a token of its own, until it is ended."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from roll.view.folder import Runs
from roll.view.server import Watch, app

GOODBYE_S = 1
"""Pages that are open when it ends get so long."""


class _Server(uvicorn.Server):
    """Streams have no end of their own: they are ended first, so that nothing has to be cut off."""

    def __init__(self, config: uvicorn.Config, watch: Watch) -> None:
        super().__init__(config)
        self._watch = watch

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._watch.close()
        await super().shutdown(sockets)


class Serving:
    def __init__(self, folders: Sequence[Path], port: int) -> None:
        """Raises `OSError` or `OverflowError` if the port cannot be had."""
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        token = secrets.token_urlsafe(32)
        self.address = f"http://127.0.0.1:{self.port}/?token={token}"
        # Cookies know no ports: the name tells this server's from another's.
        runs = Runs(folders)
        watch = Watch(runs)
        page = app(runs, watch, token, f"roll_ui_{self.port}")
        config = uvicorn.Config(
            page, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=GOODBYE_S
        )
        self._server = _Server(config, watch)

    def stop(self) -> None:
        """May be called from another thread."""
        self._server.should_exit = True

    def run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except KeyboardInterrupt:
            pass
        finally:
            self._socket.close()
