"""A dialect: the form in which a program's client asks, hears and is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Protocol

from roll.chat.conversation import ChatRequest, Reply
from roll.chat.session import Session
from roll.core.errors import Refused

PIECE = 256
"""Characters of an answer that an event of a stream carries."""
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
}
"""Type of an error by its status, in the words that the dialects share."""


class Dialect(Protocol):
    ping: bytes
    """Bytes that keep a stream alive while the answer is sampled."""

    def read(self, body: dict[str, Any], session: Session) -> ChatRequest:
        """Raises `Refused`."""

    def reply(self, asked: ChatRequest, reply: Reply, session: Session) -> dict[str, Any]:
        """The whole answer."""

    def events(self, asked: ChatRequest, reply: Reply, session: Session) -> Iterator[bytes]:
        """The same as a stream."""

    def refusal(self, refused: Refused) -> dict[str, Any]: ...

    def refusal_event(self, refused: Refused) -> bytes:
        """The same in a stream that has begun."""


def event(data: object, name: str = "") -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE]
