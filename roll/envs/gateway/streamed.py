"""An answer as a stream of events. It is sampled whole, so that what is recorded is what was heard; while it is, the stream is
kept alive."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from roll.envs.gateway.dialect import Dialect
from roll.errors import Refused
from roll.rollout.chat.conversation import Asked, Reply
from roll.rollout.chat.session import Call, Session

PING_S = 5.0


class Streamed(Response):
    media_type = "text/event-stream"

    def __init__(self, dialect: Dialect, asked: Asked, session: Session, call: Call, request: Request) -> None:
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
