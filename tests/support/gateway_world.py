"""A gateway on loopback with a policy that says what a test has written down, and a client that speaks to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx
from tiny_models import symbol_tokenizer

from roll.chat.dialogue import Dialogue
from roll.chat.session import Session, SessionLimits
from roll.core.data.episode import PolicyAnswer
from roll.core.data.sample import VersionSpan
from roll.envs.gateway.server import Gateway

SPECIAL = ["<pad>", "<eos>", "<im_start>", "<im_end>"]
SYMBOLS = [*SPECIAL, *map(chr, range(32, 127)), "\n"]
TEMPLATE = (
    "{% if tools %}<im_start>tools\n{{ tools | tojson }}<im_end>\n{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<im_start>user{% endif %}"
    "{{ '\\n' }}<tool_response>\n{{ message.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<im_end>\n{% endif %}"
    "{% else %}<im_start>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ '\\n' }}<tool_call>\n"
    "{\"name\": \"{{ call.function.name }}\", \"arguments\": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}"
    "<im_end>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<im_start>assistant\n{% endif %}"
)  # fmt: skip
THINKING = TEMPLATE.replace("<im_start>assistant\n{% endif %}", "<im_start>assistant\n<think>\n{% endif %}")
STRICT = "{% for message in messages %}{% if message.role == 'tool' and not (messages[loop.index0 - 1].tool_calls or "
STRICT += "messages[loop.index0 - 1].role == 'tool') %}{{ raise_exception('a result without a call') }}{% endif %}{% endfor %}"
"""At the head of a template: results of tools stand behind calls only, as some models' templates want it."""
END = SYMBOLS.index("<im_end>")
PRICE = {"type": "function", "function": {"name": "price", "parameters": {"type": "object", "properties": {}}}}


def make_tokenizer(template: str = TEMPLATE) -> Any:
    pattern = "<(?:pad|eos|im_start|im_end)>|[\\s\\S]"
    return symbol_tokenizer(SYMBOLS, pattern, chat_template=template, model_max_length=100_000)


def call(name: str = "price", **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


class World:
    """`says`: the answers, in the order of the calls; a function of (number, context) instead answers anything. `tokenizer`:
    another than that of `template`; its end of a text ends answers. `seeing`: what shows images, of the
    tokenizer. `show`: what stores them."""

    def __init__(
        self,
        says: Sequence[str] | Callable[[int, list[int]], str] = (),
        *,
        template: str = TEMPLATE,
        tokenizer: Any = None,
        context: int = 20_000,
        answer: int = 1000,
        calls: int = 1000,
        seeing: Callable[[Any], Any] | None = None,
        show: Any = None,
    ) -> None:
        self.tokenizer = tokenizer or make_tokenizer(template)
        self.end = END if tokenizer is None else tokenizer.eos_token_id
        self.show = show
        self.dialogue = Dialogue(self.tokenizer, "native", sees=None if seeing is None else seeing(self.tokenizer))
        self.limits = SessionLimits(context, answer, calls)
        self.says = says
        self.asked: list[tuple[list[int], int, tuple[str, ...]]] = []
        self.answered: list[PolicyAnswer] = []
        self.held: asyncio.Event | None = None
        """Answers wait for it."""
        self.asking = asyncio.Event()
        """Set when the policy is asked."""
        self.ends = True
        """Whether answers end themselves."""

    async def __aenter__(self) -> World:
        self.gateway = Gateway("127.0.0.1")
        self.session = Session("episode", self.dialogue, self.ask, self.limits, show=self.show)
        self.address = self.gateway.open(self.session)
        self.client = httpx.AsyncClient(timeout=30, verify=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()
        await self.gateway.close()

    async def ask(self, context: Sequence[int], number: int, most: int, stop: tuple[str, ...]) -> PolicyAnswer:
        self.asked.append((list(context), most, stop))
        self.asking.set()
        if self.held is not None:
            await self.held.wait()
        text = self.says(number, list(context)) if callable(self.says) else self.says[number]
        ids = self.ids(text) + [self.end] * self.ends
        half = len(ids) // 2
        spans = [VersionSpan(0, half, number), VersionSpan(half, len(ids), number + 1)] if half else [VersionSpan(0, 1, number)]
        answer = PolicyAnswer(ids, [-0.5 - number] * len(ids), spans, text, self.ends)
        self.answered.append(answer)
        return answer

    def ids(self, text: str) -> list[int]:
        found: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids)))

    async def post(self, path: str, body: object, key: str | None = None, **headers: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.session.model_key if key is None else key}"} | headers
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post(f"{self.address}/{path}", content=content, headers=headers)

    async def chat(self, messages: Sequence[object], tools: object = None, retry: int = 0, **more: object) -> httpx.Response:
        body = {"model": "any", "messages": list(messages), **({"tools": tools} if tools else {}), **more}
        return await self.post("v1/chat/completions", body, **{"x-stainless-retry-count": str(retry)})

    async def say(self, messages: Sequence[object], tools: object = None, **more: object) -> dict[str, Any]:
        """The message of a good answer."""
        answer = await self.chat(messages, tools, **more)
        assert answer.status_code == 200, answer.text
        message: dict[str, Any] = answer.json()["choices"][0]["message"]
        return message

    async def reward(self, body: object, key: str | None = None) -> httpx.Response:
        return await self.post("reward", body, self.session.reward_key if key is None else key)
