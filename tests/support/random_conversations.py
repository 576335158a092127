"""Agents that talk at random: they go on, branch off, edit, compact, begin anew, repeat and lose answers."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from gateway_world import PRICE, World, call, user

from roll.envs.gateway.server import CHAT
from roll.rollout.chat.conversation import whole_body
from roll.rollout.chat.session import Session
from roll.rollout.episode import PolicyAnswer

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

    def __init__(self, rng: random.Random, template: str) -> None:
        super().__init__(lambda number, context: answer(rng), template=template)
        self.rng = rng
        self.given: list[tuple[list[int], int, tuple[str, ...]]] = []

    async def chat(self, messages: Sequence[object], tools: object = None, retry: int = 0, **more: object) -> Any:
        """As over HTTP, without it."""
        body = {"messages": list(messages), **({"tools": tools} if tools else {}), **more}
        text = json.dumps(body).encode()
        asked = CHAT.read(whole_body(text), self.session)
        call = self.session.begin(asked, text, bool(retry))
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


async def play(seed: int, template: str) -> RandomWorld:
    rng = random.Random(seed)
    world = RandomWorld(rng, template)
    world.session = Session("episode", world.dialogue, world.ask, world.limits)
    await asyncio.gather(*(agent(world, random.Random(f"{seed}/{i}")) for i in range(AGENTS)))
    return world


async def agent(world: RandomWorld, rng: random.Random) -> None:
    tools = rng.choice([[], [PRICE], [PRICE, OTHER]])
    messages: list[dict[str, Any]] = [{"role": "system", "content": rng.choice(["main", "helper"])}] * rng.randint(0, 1)
    messages.append(user(rng.choice(["task", text(rng)])))
    for _ in range(ROUNDS):
        asked = [world.chat(messages, tools)]
        if rng.random() < 0.2:
            asked.append(world.chat([*messages], tools))
        if rng.random() < 0.2:
            asked.append(world.chat(messages, tools, retry=1))
        heard = await asyncio.gather(*asked)
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
