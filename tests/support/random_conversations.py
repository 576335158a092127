"""Agents that talk at random: they go on, branch off, edit, compact, begin anew, repeat and lose answers."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gateway_world import PRICE, World, call, user
from transformers import AutoTokenizer

from roll.chat.conversation import whole_body
from roll.chat.session import Session
from roll.core.data.episode import PolicyAnswer
from roll.core.errors import Refused
from roll.envs.gateway.server import CHAT

LETTERS = 'abcde <>\n{}"'
AGENTS, ROUNDS = 3, 6
OTHER = {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {"deep": {}}}}}


def text(rng: random.Random, most: int = 12) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, most)))


def answer(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.35:
        made = [call(item=rng.choice("abc"), n=rng.choice([1, 2.0, None, {"x": [True]}])) for _ in range(rng.randint(1, 3))]
        return f"{text(rng)}\n" * rng.randint(0, 1) + rng.choice(["\n", ""]).join(made)
    if kind < 0.5:
        return f"<think>\n{text(rng)}\n</think>\n\n{text(rng)}"
    if kind < 0.6:
        return f'{text(rng)}<tool_call>{{"name": "pri'
    return text(rng)


class RandomWorld(World):
    """`given`: what the policy was asked, by its answers: they come in another order than the requests."""

    def __init__(self, rng: random.Random, template: str, tokenizer: Any = None) -> None:
        super().__init__(lambda number, context: answer(rng), template=template, tokenizer=tokenizer)
        self.rng = rng
        self.refused = 0
        """Requests that the chat template has refused; the agent then begins anew, without tools."""
        self.given: list[tuple[list[int], int, tuple[str, ...]]] = []

    async def chat(self, messages: Sequence[object], tools: object = None, retry: int = 0, **more: object) -> Any:
        """As over HTTP, without it."""
        body = {"messages": list(messages), **({"tools": tools} if tools else {}), **more}
        text = json.dumps(body).encode()
        asked = CHAT.read(whole_body(text), self.session)
        call = await self.session.begin(asked, text, bool(retry))
        reply = await self.session.reply(call)
        self.session.record(call)
        said = CHAT.reply(asked, reply, self.session)
        return SimpleNamespace(json=lambda: said)

    async def ask(self, context: Sequence[int], number: int, most: int, stop: tuple[str, ...]) -> PolicyAnswer:
        for _ in range(self.rng.randint(0, 3)):
            await asyncio.sleep(0)
        self.ends = self.rng.random() < 0.8
        said = await super().ask(context, number, most, stop)
        self.given.append((list(context), most, stop))
        return said


async def play(seed: int, template: str, tokenizer: Any = None) -> RandomWorld:
    rng = random.Random(seed)
    world = RandomWorld(rng, template, tokenizer)
    world.session = Session("episode", world.dialogue, world.ask, world.limits)
    await asyncio.gather(*(agent(world, random.Random(f"{seed}/{i}")) for i in range(AGENTS)))
    return world


async def agent(world: RandomWorld, rng: random.Random) -> None:
    tools: list[Any] = rng.choice([[], [PRICE], [PRICE, OTHER]])
    messages: list[dict[str, Any]] = [{"role": "system", "content": rng.choice(["main", "helper"])}] * rng.randint(0, 1)
    messages.append(user(rng.choice(["task", text(rng)])))
    for _ in range(ROUNDS):
        asked = [world.chat(messages, tools)]
        if rng.random() < 0.2:
            asked.append(world.chat([*messages], tools))
        if rng.random() < 0.2:
            asked.append(world.chat(messages, tools, retry=1))
        heard = await asyncio.gather(*asked, return_exceptions=True)
        if refused := next((each for each in heard if isinstance(each, BaseException)), None):
            if not isinstance(refused, Refused):
                raise refused
            world.refused += 1
            tools, messages = [], [user(text(rng))]
            continue
        message = rng.choice(heard).json()["choices"][0]["message"]
        if not message.get("tool_calls") and rng.random() < 0.15:
            message |= {"content": message["content"] + text(rng)}
        following = [
            {"role": "tool", "tool_call_id": made["id"], "content": text(rng)} for made in message.get("tool_calls") or ()
        ] or [user(text(rng))]
        messages = [*changed(messages, rng), without_thinking(message, rng), *following]


def without_thinking(message: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.5:
        return {name: value for name, value in message.items() if name != "reasoning_content"}
    return message


def changed(messages: list[dict[str, Any]], rng: random.Random) -> list[dict[str, Any]]:
    """A history as clients keep it, edit it and compact it."""
    kind = rng.random()
    at = rng.randrange(len(messages))
    if kind < 0.1 and messages[at]["role"] == "user":
        return [*messages[:at], user(text(rng)), *messages[at + 1 :]]
    if kind < 0.15:
        return [user(f"so far: {text(rng)}")]
    if kind < 0.2:
        return [*messages, {"role": "assistant", "content": "made up"}, user("go on")]
    return messages


def check_paths(world: RandomWorld, seed: int) -> None:
    """The tokens of every recorded path are what the policy was given and sampled."""
    given = {id(sampled): context for sampled, (context, _, _) in zip(world.answered, world.given, strict=True)}
    assert world.session.forest.answers, seed
    for number, answer in enumerate(world.session.forest.answers):
        context = given[id(answer.sampled)]
        assert answer.ids == [*context, *answer.sampled.token_ids], f"seed {seed}, answer {number}"
        assert len(context) == answer.reply.prompt_tokens


def tokenizer_with(folder: Path, template: str, end: str) -> Any:
    """The tokenizer of a folder with another chat template, whose marks it knows, and the text that ends answers."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    marks = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>"]
    known = tokenizer.get_vocab()
    tokenizer.add_special_tokens({"additional_special_tokens": [mark for mark in marks if mark not in known]})
    tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token = template, marks[0], end
    return tokenizer
