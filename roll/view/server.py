"""`roll ui`: the page over HTTP, read-only, for those who have the token, on loopback.

A browser shows this page to its user alone: a site that names the server by a host name of its own is refused (DNS rebinding),
and the policy lets no script run but the page's own. What many readers of a run ask is worked out once for all of them, and again
when a file that it comes from has changed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hmac
import json
import logging
import os
import re
import secrets
import socket
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from roll.view.page import QueryParameters, answer, assets, static_text
from roll.view.runs import Runs

HOSTS = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?")
LOOK_S = 1.0
"""Time between two looks at a run that a page watches."""
MOST_WATCHERS = 200
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
SOURCES = {
    "curves": ("metrics.jsonl",),
    "clock": ("metrics.jsonl",),
    "funnel": ("groups.jsonl", "summary.json"),
    "groups": ("groups.", "samples"),
    "lanes": ("trace",),
}
"""The files of a run that an answer comes from, by how their names begin. Other questions are answered each time."""
MOST_KEPT = 64

Stamp = tuple[tuple[str, int, int], ...]
Key = tuple[str, tuple[tuple[str, str], ...]]


class Door:
    """Lets in requests of this machine's own browser that know the token, to read."""

    def __init__(self, app: ASGIApp, token: str, cookie: str) -> None:
        self._app = app
        self._token = token
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        refused = self._refused(Request(scope))
        if refused is not None:
            return await refused(scope, receive, send)

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *Headers(HEADERS).raw]
            await send(message)

        await self._app(scope, receive, with_headers)

    def _refused(self, request: Request) -> Response | None:
        """The answer, where there is no other."""
        if not HOSTS.fullmatch(request.headers.get("host", "")):
            return PlainTextResponse("this server answers to localhost only", 421, HEADERS)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("this page is read, not written", 405, HEADERS)
        if self._knows(request.query_params.get("token", "")):
            if request.url.path != "/":
                return None
            answer = RedirectResponse("/", 303, HEADERS)
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
            return answer
        if not self._knows(request.cookies.get(self._cookie, "")):
            return PlainTextResponse("open the address that `roll ui` has printed: it has the token", 401, HEADERS)
        return None

    def _knows(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


class Watch:
    """One look at each run that is watched, however many watch it."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._watchers: dict[str, int] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._news: dict[str, asyncio.Future[bytes]] = {}

    @property
    def full(self) -> bool:
        return sum(self._watchers.values()) >= MOST_WATCHERS

    async def statuses(self, name: str) -> AsyncIterator[bytes]:
        """The status of a run, now and whenever it has changed, as server-sent events. Raises `LookupError`."""
        self._watchers[name] = self._watchers.get(name, 0) + 1
        try:
            yield await run_in_threadpool(_status_event, self._runs, name)
            if name not in self._tasks:
                self._news[name] = asyncio.get_running_loop().create_future()
                self._tasks[name] = asyncio.create_task(self._look(name))
            while name in self._news:
                if event := await asyncio.shield(self._news[name]):
                    yield event
        finally:
            self._watchers[name] -= 1
            if not self._watchers[name]:
                del self._watchers[name]
                if task := self._tasks.pop(name, None):
                    task.cancel()
                self._news.pop(name, None)

    def close(self) -> None:
        """The server ends, and so does every stream."""
        for task in self._tasks.values():
            task.cancel()
        waiting, self._news, self._tasks = self._news, {}, {}
        for future in waiting.values():
            future.set_result(b"")

    async def _look(self, name: str) -> None:
        last = b""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                event = await run_in_threadpool(_status_event, self._runs, name)
            except LookupError as error:
                event = f"event: gone\ndata: {json.dumps(str(error))}\n\n".encode()
            if event != last:
                last = event
                waiting, self._news[name] = self._news[name], asyncio.get_running_loop().create_future()
                waiting.set_result(event)


def _status_event(runs: Runs, name: str) -> bytes:
    return f"data: {json.dumps(runs.run(name).status())}\n\n".encode()


class SharedAnswers:
    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._kept: OrderedDict[Key, tuple[Stamp, asyncio.Task[bytes]]] = OrderedDict()

    async def answer(self, what: str, given: Sequence[tuple[str, str]]) -> bytes:
        """As JSON. Raises as `answer`."""
        question = QueryParameters([one for one in given if one[0] != "token"])
        if what not in SOURCES:
            return await run_in_threadpool(self._worked_out, what, question)
        stamp = await run_in_threadpool(self._stamp, what, question)
        key = what, tuple(question.given)
        before = self._kept.pop(key, None)
        if before is None or before[0] != stamp or (before[1].done() and before[1].exception()):
            before = stamp, asyncio.create_task(run_in_threadpool(self._worked_out, what, question))
        self._kept[key] = before
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return await asyncio.shield(before[1])

    def _worked_out(self, what: str, question: QueryParameters) -> bytes:
        return json.dumps(answer(self._runs, what, question), allow_nan=False, separators=(",", ":")).encode()

    def _stamp(self, what: str, question: QueryParameters) -> Stamp:
        with os.scandir(self._runs.run(question.get("run")).folder) as entries:
            stats = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries if entry.name.startswith(SOURCES[what])]
        return tuple(sorted((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats))


def app(runs: Runs, watch: Watch, token: str, cookie: str) -> ASGIApp:
    shared = SharedAnswers(runs)

    async def asked(request: Request) -> Response:
        return await _answered(lambda: shared.answer(request.path_params["what"], request.query_params.multi_items()))

    async def stream(request: Request) -> Response:
        name = request.query_params.get("run", "")
        if watch.full:
            return PlainTextResponse(f"{MOST_WATCHERS} pages watch already", 503)
        try:
            await run_in_threadpool(runs.run, name)
        except LookupError as error:
            return PlainTextResponse(str(error), 404)
        return StreamingResponse(watch.statuses(name), media_type="text/event-stream")

    found = assets()
    written = {
        "": Response(static_text("index.html"), media_type="text/html"),
        "style.css": Response(found.style, media_type="text/css"),
        "uPlot.js": Response(found.chart, media_type="text/javascript"),
        "app.js": Response(found.script, media_type="text/javascript"),
    }

    async def static(request: Request) -> Response:
        return written.get(request.path_params.get("name", ""), PlainTextResponse("no such file", 404))

    routes = [
        Route("/", static),
        Route("/static/{name}", static),
        Route("/api/stream", stream),
        Route("/api/{what}", asked),
    ]
    return Door(Starlette(routes=routes), token, cookie)


async def _answered(ask: Callable[[], Awaitable[bytes]]) -> Response:
    try:
        return Response(await ask(), media_type="application/json")
    except LookupError as error:
        return PlainTextResponse(str(error.args[0] if error.args else error), 404)
    except (ValueError, OSError) as error:
        return PlainTextResponse(str(error), 400)


REQUEST_S = 10.0
"""A connection that has not made a request for so long is closed, however much of one it has said."""
GOODBYE_S = 1
"""Pages that are open when it ends get so long."""


class _Impatient(H11Protocol):
    """uvicorn's own deadline begins with the first answer."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._deadline is not None:
            self._deadline.cancel()

    def _wait(self) -> None:
        """For a request, unless one is being answered."""
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        elif not answering and self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_S, self.transport.close)


class _Server(uvicorn.Server):
    """Streams have no end of their own: they are ended first, so that nothing has to be cut off."""

    def __init__(self, config: uvicorn.Config, watch: Watch) -> None:
        super().__init__(config)
        self._watch = watch

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._watch.close()
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # an answer whose reader has gone is cut off
        await super().shutdown(sockets)


class Serving:
    def __init__(self, folders: Sequence[Path], port: int) -> None:
        """Raises `OSError` or `OverflowError` if the port is taken."""
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        token = secrets.token_urlsafe(32)
        self.address = f"http://127.0.0.1:{self.port}/?token={token}"
        # Cookies know no ports: the name tells this server's from another's.
        self._runs = runs = Runs(folders)
        watch = Watch(runs)
        page = app(runs, watch, token, f"roll_ui_{self.port}")
        config = uvicorn.Config(
            page, http=_Impatient, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=GOODBYE_S
        )
        self._server = _Server(config, watch)

    def stop(self) -> None:
        """May be called from another thread."""
        self._server.should_exit = True

    def run(self) -> None:
        gc.set_threshold(100_000, 50, 100)  # journals become millions of objects that stay: looking for circles doubles the time
        threading.Thread(target=self._read_ahead, daemon=True).start()
        try:
            self._server.run(sockets=[self._socket])
        except KeyboardInterrupt:
            pass
        finally:
            self._socket.close()

    def _read_ahead(self) -> None:
        """A page shows the newest run first: its curves are read while the browser starts."""
        for name in list(self._runs.places())[:1]:
            with contextlib.suppress(LookupError):
                self._runs.run(name).status()
