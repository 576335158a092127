"""Long requests are read and rendered on threads, so that the requests of other episodes are answered meanwhile.

An episode has one at a time there: those of one agent take no thread from another's. Short ones, which take a moment, stay on the
event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from roll.chat.conversation import Message
from roll.core.errors import contained

T = TypeVar("T")

SHORT = 1 << 15
"""Characters, or bytes, that are read in a few milliseconds."""
THREADS = 8
CHARACTERS_A_TOKEN = 1024
"""More than a token has: the longest of usual vocabularies are some hundred spaces."""
BYTES_A_TOKEN = 4 * CHARACTERS_A_TOKEN
FRAME_BYTES = 1 << 20
"""Bytes of a request besides the messages: tools, and fields that no template shows."""

_threads = ThreadPoolExecutor(THREADS, "requests")


class Aside:
    """Long work of one episode, one after the other, beside the event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def __call__(self, size: int, work: Callable[..., T], *arguments: object) -> T:
        """Runs `work`, on a thread if it is long. `size`: of its input."""
        if size <= SHORT:
            return work(*arguments)
        async with self._turn:
            return await asyncio.get_running_loop().run_in_executor(_threads, contained, work, *arguments)


def size_of(messages: Sequence[Message]) -> int:
    """Returns the number of characters, a few for each message as such."""
    return sum(16 + len(str(message["content"])) for message in messages)


def too_long(messages: Sequence[Message], context: int) -> str:
    """Returns why so many tokens cannot hold the messages, without rendering them; empty if they may. The assistant's words are
    not counted: templates leave thinking out."""
    if len(messages) > context:
        return f"the conversation has {len(messages):,} messages"
    characters = sum(len(str(message["content"])) for message in messages if message["role"] != "assistant")
    return f"the conversation has {characters:,} characters" if characters > context * CHARACTERS_A_TOKEN else ""
