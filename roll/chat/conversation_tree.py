"""The conversations of an episode: a forest of the policy's answers.

An answer hangs on the answer that its context goes on from, with the tokens that were told in between; a context that goes on
from none begins a tree. The tokens from a root to an answer are, to the token, what the engine was given and what it sampled. Two
requests on one history make two branches, an edited or compacted history begins another one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from roll.chat.answer_text import THINK, read_answer
from roll.chat.conversation import ChatRequest, Message, Reply, digests, further, thinking_of
from roll.chat.dialogue import Dialogue
from roll.chat.exchange import Exchange
from roll.core.data.episode import PolicyAnswer


@dataclass(frozen=True, slots=True)
class Context:
    """The context of an answer, and its place in the tree."""

    parent: Answer | None
    told: list[int]
    """Tokens behind the parent's answer, or all of them."""
    thinks: bool
    ids: list[int]
    """All of them."""


@dataclass(slots=True, eq=False)
class Answer:
    parent: Answer | None
    told: list[int]
    news: list[Message]
    """Messages behind the parent's answer, or all; kept once, as histories are sent whole with each request."""
    tools: list[Message]
    sampled: PolicyAnswer
    reply: Reply
    branches: int = 0
    """Answers that hang on it."""
    reward: float = 0.0
    """Reward for this answer alone."""
    exchange: Exchange | None = None
    """The request of a program that asked over HTTP."""
    times: tuple[float, float] | tuple[()] = ()
    """Seconds of the day: it was asked for, and was there."""
    message: Message = field(init=False)
    place: int = field(init=False)
    """Place of its message in its conversation."""

    def __post_init__(self) -> None:
        self.message = self.reply.message
        self.place = len(self.news) + (0 if self.parent is None else self.parent.place + 1)

    def path(self) -> list[Answer]:
        """Returns the answers from the root to this one."""
        return [*up(self)][::-1]

    @property
    def ids(self) -> list[int]:
        return [token for answer in self.path() for token in (*answer.told, *answer.sampled.token_ids)]

    @property
    def conversation(self) -> list[Message]:
        return [message for answer in self.path() for message in (*answer.news, answer.message)]


class ConversationTree:
    def __init__(self, dialogue: Dialogue) -> None:
        self._dialogue = dialogue
        self.answers: list[Answer] = []
        """Answers in the order of their recording."""
        self._after: dict[bytes, list[Answer]] = {}
        """Digest of a conversation that ends with an answer -> the answers that end it so."""
        self._behind: dict[bytes, list[Answer]] = {}
        """Digest of a conversation -> the answers to it."""
        self.rendered_anew = 0
        """Conversations that began with earlier answers, of which none could be gone on from."""

    def context(self, asked: ChatRequest) -> Context:
        """Raises `TemplateRefusal`."""
        parent, added = self._match(asked)
        if parent is not None:
            news = asked.messages[parent.place + 1 :]
            last = parent.sampled.token_ids[-1] if parent.sampled.token_ids else None
            bridge = self._dialogue.bridge(parent.message, news, last, asked.tools, added)
            if bridge is not None:
                return Context(parent, bridge.ids, bridge.thinks, [*parent.ids, *bridge.ids])
        whole = self._dialogue.whole(asked.messages, asked.tools)
        return Context(None, whole.ids, whole.thinks, whole.ids)

    def record(self, context: Context, asked: ChatRequest, sampled: PolicyAnswer, reply: Reply) -> Answer:
        parent = context.parent
        news = asked.messages if parent is None else asked.messages[parent.place + 1 :]
        answer = Answer(parent, context.told, news, asked.tools, sampled, reply)
        if parent is not None:
            parent.branches += 1
        else:
            self.rendered_anew += any(message["role"] == "assistant" for message in news)
        self.answers.append(answer)
        *_, before, digest = digests(asked.tools, [*asked.messages, answer.message])
        self._behind.setdefault(before, []).append(answer)
        as_written = [further(before, {"role": "assistant", "content": text}) for text in written(answer, context.thinks)]
        for each in dict.fromkeys([digest, *as_written]):
            self._after.setdefault(each, []).append(answer)
        return answer

    def find(self, call_id: object) -> Answer | None:
        """Finds an answer by the id of its call."""
        return next((answer for answer in self.answers if answer.reply.call_id == call_id), None)

    def leaves(self) -> list[Answer]:
        """Returns leaves as they were recorded."""
        return [answer for answer in self.answers if not answer.branches]

    def _match(self, asked: ChatRequest) -> tuple[Answer | None, str]:
        """Returns the answer in the history with the longest history of its own that is the request's, and the program's text
        behind it."""
        histories, messages = digests(asked.tools, asked.messages), asked.messages
        for place in range(len(histories) - 2, -1, -1):
            alike = [each for each in self._after.get(histories[place], ()) if _same_thinking(each, messages)]
            if alike:
                ids = _call_ids(messages[place])
                return next((each for each in alike if _call_ids(each.message) == ids), alike[-1]), ""
            for each in reversed(self._behind.get(histories[place - 1], ()) if place else ()):
                added = self._added(each, messages[place])
                if added is not None and _same_thinking(each, messages):
                    return each, added
        return None, ""

    def _added(self, answer: Answer, message: Message) -> str | None:
        """Returns a message's text behind the answer that it begins with, as it was sampled; None if it does not. Programs write
        the text back that an answer was stopped at, and go on. An answer with an end of its own is over."""
        if message["role"] != "assistant" or message.get("tool_calls"):
            return None
        began, text = self._dialogue.spelled(answer.sampled.token_ids).strip(), str(message["content"]).strip()
        return text[len(began) :] if began and text.startswith(began) else None


def replied(asked: ChatRequest, context: Context, sampled: PolicyAnswer, call_id: str = "") -> Reply:
    """Returns the sampled text as an answer."""
    said = read_answer(sampled.text, context.thinks, asked.reads_calls and bool(asked.tools))
    return Reply(
        call_id=call_id,
        content=said.content,
        thinking=said.thinking,
        calls=said.calls,
        stopped=sampled.stopped,
        prompt_tokens=len(context.ids),
        answer_tokens=len(sampled.token_ids),
        created=int(time.time()),
    )


def _same_thinking(answer: Answer, messages: Sequence[Message]) -> bool:
    """Thinking may be left out of a history; other thinking than was sampled is another history."""
    return all(thinking_of(messages[each.place]) in ("", thinking_of(each.message)) for each in up(answer))


def written(answer: Answer, thinks: bool) -> list[str]:
    """The answer as text: so an agent sends it back that reads thinking and calls of tools itself."""
    text = answer.sampled.text
    return [text, f"{THINK}{text}"] if thinks else [text]


def up(answer: Answer | None) -> Iterator[Answer]:
    while answer is not None:
        yield answer
        answer = answer.parent


def _call_ids(message: Message) -> list[str]:
    return [call["id"] for call in message.get("tool_calls") or ()]
