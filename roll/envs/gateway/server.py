"""The gateway: what programs take for a model, over HTTP, beside the coordinator that plays their episodes.

Each episode has an address and two keys of 256 bits: one speaks for the policy, the other gives the reward. Who knows neither
learns nothing but that (401); an episode that has ended says so (409). Nothing of what is sent is evaluated or unpickled.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from roll.chat.conversation import ChatRequest, Reply, whole_body
from roll.chat.exchange import Sent, without_images
from roll.chat.session import LARGEST_BODY, Call, Session
from roll.core.errors import Refused
from roll.envs.gateway.anthropic import Messages, counted
from roll.envs.gateway.chat import ChatCompletions
from roll.envs.gateway.dialect import Dialect
from roll.envs.gateway.own_address import own_address
from roll.envs.gateway.responses import Responses
from roll.platform.ports import family_of

PING_S = 5.0


class Streamed(Response):
    """Events. The answer is sampled whole, so that what is recorded is what was heard; meanwhile the stream is kept alive."""

    media_type = "text/event-stream"

    def __init__(self, dialect: Dialect, asked: ChatRequest, session: Session, call: Call, request: Request) -> None:
        super().__init__(headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._dialect, self._asked, self._session, self._call, self._request = dialect, asked, session, call, request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        waiting = asyncio.ensure_future(self._session.reply(self._call))
        try:
            while not (await asyncio.wait([waiting], timeout=PING_S))[0]:
                await send({"type": "http.response.body", "body": self._dialect.ping, "more_body": True})
            if await self._request.is_disconnected():
                return
            await send({"type": "http.response.body", "body": self._said(waiting), "more_body": False})
        finally:
            waiting.cancel()

    def _said(self, waiting: asyncio.Task[Reply]) -> bytes:
        """The events; recorded."""
        try:
            reply = waiting.result()
            self._session.record(self._call, self._dialect.reply(self._asked, reply, self._session))
        except Refused as refused:
            return self._dialect.refusal_event(refused)
        return b"".join(self._dialect.events(self._asked, reply, self._session))


REMEMBERED = 4096
"""Ended episodes whose keys are still known: a late call hears that it is late."""
IDLE_S = 600
"""Time that a client's connection stays open between two calls: a tool may take long."""
GOODBYE_S = 1
LOOPBACKS = ("127.0.0.1", "::1")
CHAT, MESSAGES = ChatCompletions(), Messages()
DIALECTS: Mapping[str, Dialect] = {"chat/completions": CHAT, "messages": MESSAGES, "responses": Responses()}
NO_RETRY = {"x-should-retry": "false"}
"""Clients repeat a 409 by themselves unless they are told not to."""

Handler = Callable[[Request, Session], Awaitable[Response]]


class Gateway:
    def __init__(self, host: str) -> None:
        """`host`: the address to listen on, and in the addresses of episodes; or a network in which this machine has one. Raises
        `ConfigError` if it has none."""
        self._host = own_address(host)
        self._sessions: dict[str, Session] = {}
        self._unheard: set[str] = set()
        """Episodes of which no request has come."""
        self._ended: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None

    def open(self, session: Session, host: str | None = None) -> str:
        """The address of the episode. `host`: that of this gateway where the program is. Raises `OSError` if there is none at
        the first."""
        if self._socket is None:
            self._socket = socket.create_server((self._host, 0), family=family_of(self._host), backlog=2048)
            config = uvicorn.Config(
                self._hear(self._app()),
                loop="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=IDLE_S,
                timeout_graceful_shutdown=GOODBYE_S,
            )
            self._server = _Server(config)
            self._serving = asyncio.ensure_future(self._server.serve(sockets=[self._socket]))
        self._sessions[session.name] = session
        self._unheard.add(session.name)
        host = host or self._host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/e/{session.name}"

    @property
    def port(self) -> int:
        assert self._socket is not None
        port: int = self._socket.getsockname()[1]
        return port

    def silence_of(self, session: Session) -> str:
        """The words for people where no request of the episode has come, whatever it asked for; none if one has."""
        if session.name not in self._unheard:
            return ""
        said = f"no request of it has reached the gateway at {self._host}"
        return said if self._host in LOOPBACKS else f"{said} (gateway_host): does a firewall drop what goes there?"

    async def serve(self, listener: socket.socket) -> asyncio.Server:
        """Those, too, that this socket hears."""
        config, state = self._server.config, self._server.server_state
        if not config.loaded:
            config.load()
        connection: Any = config.http_protocol_class
        made = partial(connection, config=config, server_state=state, app_state={})
        return await asyncio.get_running_loop().create_server(made, sock=listener)

    def end(self, session: Session) -> None:
        session.finish()
        self._sessions.pop(session.name, None)
        self._unheard.discard(session.name)
        self._ended[session.name] = (session.model_key, session.reward_key)
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    async def close(self) -> None:
        for session in list(self._sessions.values()):
            self.end(session)
        serving, self._serving = self._serving, None
        if serving is not None:
            self._server.should_exit = True
            await serving
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _hear(self, app: ASGIApp) -> ASGIApp:
        async def heard(scope: Scope, receive: Receive, send: Send) -> None:
            self._unheard.difference_update(scope["path"].split("/")[2:3])
            await app(scope, receive, send)

        return heard

    def _app(self) -> Starlette:
        routes = [Route(f"/e/{{episode}}/v1/{path}", self._asking(each), methods=["POST"]) for path, each in DIALECTS.items()]
        by_either = partial(self._called, rewards=None)
        routes += [
            Route(
                "/e/{episode}/v1/messages/count_tokens",
                partial(self._called, handler=_counted, rewards=False, dialect=MESSAGES),
                methods=["POST"],
            ),
            Route("/e/{episode}/v1/models", partial(by_either, handler=_models), methods=["GET"]),
            Route("/e/{episode}/reward", partial(self._called, handler=_reward, rewards=True), methods=["POST"]),
            Route("/e/{episode}/end", partial(by_either, handler=_end), methods=["POST"]),
        ]
        return Starlette(routes=routes)

    def _asking(self, dialect: Dialect) -> Callable[[Request], Awaitable[Response]]:
        return partial(self._called, handler=partial(_asked, dialect), rewards=False, dialect=dialect)

    async def _called(self, request: Request, handler: Handler, rewards: bool | None, dialect: Dialect = CHAT) -> Response:
        """`rewards`: whose key it takes, the reward's or the policy's; None: either."""
        try:
            return await handler(request, self._session(request, rewards))
        except Refused as refused:
            return JSONResponse(dialect.refusal(refused), refused.status, NO_RETRY)
        except ClientDisconnect:
            return Response(status_code=400)

    def _session(self, request: Request, rewards: bool | None) -> Session:
        """Raises `Refused`."""
        name, key = request.path_params["episode"], _key(request)
        session = self._sessions.get(name)
        model, reward = self._ended.get(name, ("", "")) if session is None else (session.model_key, session.reward_key)
        knows_model, knows_reward = (bool(known) and hmac.compare_digest(key, known.encode()) for known in (model, reward))
        if not knows_model and not knows_reward:
            raise Refused(401, "the key is not known here", code="invalid_api_key")
        if rewards is not None and not (knows_reward if rewards else knows_model):
            raise Refused(403, "rewards are given with the reward's key" if rewards else "the reward's key asks no model")
        if session is None or session.ended:
            raise Refused(409, "the episode has ended", code="episode_ended")
        return session


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the worker's."""
        yield


def _key(request: Request) -> bytes:
    bearer, _, key = request.headers.get("authorization", "").partition(" ")
    return (key if bearer.lower() == "bearer" else request.headers.get("x-api-key", "")).strip().encode()


async def _body(request: Request, most: int = LARGEST_BODY) -> bytes | None:
    """None if it has more than `most` bytes. Raises `Refused`."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > LARGEST_BODY:
            raise Refused(413, f"a request has at most {LARGEST_BODY >> 20} MiB")
        if size > most:
            return None
        parts.append(part)
    return b"".join(parts)


async def _asking_body(request: Request, session: Session) -> bytes:
    """Reads the body of a conversation, for which its episode needs room. Raises `Refused`."""
    text = await _body(request, session.most_bytes)
    if text is None:
        raise session.out_of_context(f"the request has more than {session.most_bytes:,} bytes")
    return text


def _read(dialect: Dialect, text: bytes, session: Session) -> tuple[dict[str, Any], ChatRequest]:
    """Raises `Refused`."""
    body = whole_body(text)
    return body, dialect.read(body, session)


async def _asked(dialect: Dialect, request: Request, session: Session) -> Response:
    text = await _asking_body(request, session)
    body, asked = await session.aside(len(text), _read, dialect, text, session)
    repeated = request.headers.get("x-stainless-retry-count", "0") != "0"
    path = request.url.path
    sent = Sent(path.removeprefix(f"/e/{session.name}"), body if session.show is None else without_images(body))
    call = await session.begin(asked, path.encode() + b"\n" + text, repeated, sent)
    if asked.stream:
        return Streamed(dialect, asked, session, call, request)
    reply = await session.reply(call)
    if await request.is_disconnected():  # it may repeat the request, and then hears this answer
        return Response(status_code=499)
    told = dialect.reply(asked, reply, session)
    session.record(call, told)
    return JSONResponse(told)


async def _counted(request: Request, session: Session) -> Response:
    text = await _asking_body(request, session)
    context = await session.context(await session.aside(len(text), lambda: counted(whole_body(text), session)))
    return JSONResponse({"input_tokens": len(context.ids)})


async def _models(request: Request, session: Session) -> Response:
    model = {"id": "policy", "object": "model", "type": "model", "display_name": "policy", "created": 0, "owned_by": "roll"}
    return JSONResponse({"object": "list", "data": [model], "has_more": False, "first_id": "policy", "last_id": "policy"})


async def _reward(request: Request, session: Session) -> Response:
    try:
        body: dict[str, Any] = whole_body(await _body(request) or b"")
        if unknown := sorted(body.keys() - {"value", "call_id", "success"}):
            raise Refused(400, f"a reward has value, and may have call_id and success; not {', '.join(unknown)}", unknown[0])
        session.earn(body.get("value"), body.get("call_id"), body.get("success"))
    except Refused as refused:
        session.refused_reward = str(refused)
        raise
    return JSONResponse({"accepted": True})


async def _end(request: Request, session: Session) -> Response:
    session.finish()
    return JSONResponse({"ended": True})
