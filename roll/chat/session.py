"""One episode of an agent that asks by itself: who may speak for it, what was asked, answered and recorded, and what it earned.

An answer belongs to the episode once it is written to a program that still listens: what nobody has heard is not trained. A
request that is repeated, which clients say in a header, gets the answer of the first, whether that is still being sampled, was
lost on the way or was heard; a request that is equal without saying so is a new one.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roll.chat.answer_text import new_id
from roll.chat.aside import BYTES_A_TOKEN, FRAME_BYTES, Aside, size_of, too_long
from roll.chat.conversation import ChatRequest, Reply
from roll.chat.conversation_tree import Context, ConversationTree, replied
from roll.chat.dialogue import Dialogue
from roll.chat.exchange import Exchange, Sent
from roll.core.data.episode import Ask, PolicyAnswer
from roll.core.data.numbers import LARGEST, plain_number
from roll.core.data.sample import EpisodeEnd
from roll.core.errors import Refused, TemplateRefusal
from roll.prompts.messages import Show

LARGEST_BODY = 64 << 20
"""Bytes of any request."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    context: int
    """Tokens of a conversation with its answers."""
    answer: int
    """Tokens of an answer."""
    calls: int


@dataclass(slots=True, eq=False)
class Call:
    """A request that was let in."""

    asked: ChatRequest | None
    """The request. None, as the context, once the answer is recorded: histories are long."""
    context: Context | None
    work: asyncio.Task[PolicyAnswer]
    call_id: str
    begun: float
    """Seconds of the day."""
    sent: Sent | None = None
    """Kept until the answer is recorded, too."""
    reply: Reply | None = None
    over: float = 0.0

    def end(self, work: asyncio.Future[PolicyAnswer]) -> None:
        self.over = time.time()


class Session:
    def __init__(
        self, name: str, dialogue: Dialogue, ask: Ask, limits: SessionLimits, exchanges: bool = True, show: Show | None = None
    ) -> None:
        """`name`: part of the address; no secret. `exchanges`: whether requests and answers are kept. `show`: stores the images
        that are sent; None: the policy reads text."""
        self.name, self.show = name, show
        self.model_key, self.reward_key = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self.forest = ConversationTree(dialogue)
        self.ended = False
        self.end: EpisodeEnd | None = None
        """The limit that the episode has met, if one."""
        self.reward: float | None = None
        self.success: bool | None = None
        self.refused = ""
        """The chat template's last refusal."""
        self.refused_reward = ""
        """The reason why the last reward that was posted was refused."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the episode has ended; with the error if the policy could not answer for another reason than the request."""
        self.over.add_done_callback(_heard)
        self.generation_s = 0.0
        self._ask, self._limits, self._exchanges = ask, limits, exchanges
        self._begun = 0
        self._works: set[asyncio.Task[PolicyAnswer]] = set()
        """Requests being sampled, equal ones too."""
        self._calls: dict[str, Call] = {}
        """The newest call of each request, by the request's digest."""
        self._rendering: dict[str, asyncio.Future[None]] = {}
        """Requests that are not let in yet, by digest; done when that is decided."""
        self._rewarded: dict[str, float] = {}
        self.aside = Aside()

    async def begin(self, asked: ChatRequest, identity: bytes, repeated: bool, sent: Sent | None = None) -> Call:
        """Lets a request in, or finds the one that it repeats. `sent`: the request as it came. Raises `Refused`."""
        digest = hashlib.sha256(identity).hexdigest()
        while repeated and digest in self._rendering:
            await asyncio.wait([self._rendering[digest]])
        if repeated and (earlier := self._calls.get(digest)) is not None and not _lost(earlier):
            return earlier
        self._refuse_more()
        rendered = self._rendering[digest] = asyncio.get_running_loop().create_future()
        try:
            context = await self.context(asked)
            self._refuse_more()  # what others have asked meanwhile counts, too
            return self._let_in(asked, context, digest, sent)
        finally:
            rendered.set_result(None)
            if self._rendering.get(digest) is rendered:
                del self._rendering[digest]

    def _let_in(self, asked: ChatRequest, context: Context, digest: str, sent: Sent | None) -> Call:
        room = self._limits.context - len(context.ids)
        if room <= 0:
            raise self.out_of_context(f"the conversation has {len(context.ids)} tokens")
        most = min(room, self._limits.answer, asked.most or self._limits.answer)
        work = asyncio.ensure_future(self._answer(context, self._begun, most, asked.stop))
        work.add_done_callback(_heard)
        work.add_done_callback(self._works.discard)
        self._works.add(work)
        self._begun += 1
        call_id, kept = new_id("call"), sent if self._exchanges else None
        call = self._calls[digest] = Call(asked, context, work, call_id, time.time(), kept)
        work.add_done_callback(call.end)
        return call

    def out_of_context(self, why: str) -> Refused:
        self.end = "context"
        message = f"{why}, and sequence_length is {self._limits.context}"
        return Refused(400, message, "messages", "context_length_exceeded")

    @property
    def most_bytes(self) -> int:
        """The largest request that fits the context. How large an image is says little of its tokens."""
        return LARGEST_BODY if self.show is not None else FRAME_BYTES + self._limits.context * BYTES_A_TOKEN

    async def context(self, asked: ChatRequest) -> Context:
        """Raises `Refused`."""
        if why := too_long(asked.messages, self._limits.context):
            raise self.out_of_context(why)
        try:
            return await self.aside(size_of(asked.messages), self.forest.context, asked)
        except TemplateRefusal as refusal:
            self.refused = str(refusal)
            raise Refused(400, str(refusal), "messages") from refusal

    async def reply(self, call: Call) -> Reply:
        """The answer to a call. Raises `Refused` if there is none."""
        try:
            sampled = await asyncio.shield(call.work)
        except asyncio.CancelledError:
            if call.work.cancelled():
                raise Refused(409, "the episode has ended", code="episode_ended") from None
            raise
        except Exception as error:  # of the engines or of the run, which `over` tells: nothing that a program could mend
            raise Refused(500, "the policy cannot answer") from error
        if call.reply is None:
            assert call.asked is not None and call.context is not None
            call.reply = replied(call.asked, call.context, sampled, call.call_id)
        return call.reply

    def record(self, call: Call, told: Mapping[str, Any] | None = None) -> None:
        """The answer is being written to the program, as `told`. Raises `Refused` if it comes too late."""
        if call.asked is not None and call.context is not None:
            self._refuse_late()
            assert call.reply is not None
            answer = self.forest.record(call.context, call.asked, call.work.result(), call.reply)
            answer.times = (call.begun, call.over)
            if call.sent is not None and told is not None:
                earlier = None if answer.parent is None else answer.parent.exchange
                answer.exchange = Exchange(call.sent, told, call.call_id, earlier, (self.model_key, self.reward_key))
            call.asked = call.context = call.sent = None

    def earn(self, value: object, call_id: object, success: object = None) -> None:
        """A reward of the episode, or of one call; the same once more changes nothing. Raises `Refused`."""
        self._refuse_late()
        if (number := plain_number(value)) is None:
            raise Refused(400, f"value must be a finite number, at most {LARGEST:g} in size", "value")
        if success is not None and (not isinstance(success, bool) or call_id is not None):
            raise Refused(400, "success must be true or false, and of the episode: without call_id", "success")
        earlier = self.reward if call_id is None else self._rewarded.get(str(call_id))
        if earlier is not None:
            if earlier != number or success not in (None, self.success):
                told = f"{earlier:g}" if call_id is not None or self.success is None else f"{earlier:g}, success {self.success}"
                raise Refused(409, f"it has its reward already: {told}", code="rewarded_already")
            return
        if call_id is None:
            self.reward, self.success = number, success
            return
        answer = self.forest.find(call_id)
        if answer is None:
            raise Refused(400, "the episode has no such call", "call_id")
        self._rewarded[str(call_id)] = answer.reward = number

    @property
    def rewarded(self) -> bool:
        """True if the program has given a reward, of the episode or of a call."""
        return self.reward is not None or bool(self._rewarded)

    @property
    def cut_off(self) -> bool:
        """True if the newest answer was, at a limit: a program that gets half an answer may fail of it."""
        return bool(self.forest.answers) and not self.forest.answers[-1].reply.stopped

    def finish(self) -> None:
        """Ends the episode: nothing is asked or earned any more; sampling is given up."""
        self.ended = True
        if not self.over.done():
            self.over.set_result(None)
        for work in self._works:
            work.cancel()

    def _refuse_more(self) -> None:
        self._refuse_late()
        if self._begun >= self._limits.calls:
            self.end = self.end or "max_steps"
            raise Refused(400, f"the episode has had its {self._limits.calls} calls (max_steps)", code="max_steps")

    def _refuse_late(self) -> None:
        if self.ended:
            raise Refused(409, "the episode has ended", code="episode_ended")

    async def _answer(self, context: Context, number: int, most: int, stop: tuple[str, ...]) -> PolicyAnswer:
        started = time.perf_counter()
        try:
            return (await self._ask(context.ids, number, most, stop)).within(self._limits.answer)
        except Exception as error:
            if not self.over.done():
                self.over.set_exception(error)
            raise
        finally:
            self.generation_s += time.perf_counter() - started


def _heard(work: asyncio.Future[Any]) -> None:
    """A program that has gone asks for no error."""
    if not work.cancelled():
        work.exception()


def _lost(call: Call) -> bool:
    return call.work.done() and (call.work.cancelled() or call.work.exception() is not None)
