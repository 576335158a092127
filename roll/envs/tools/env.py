"""An environment with tools: an answer that calls some is answered by them, and the environment does not see it.

What a tool tells is an observation, its errors, too; they are counted. So is a call that cannot be read, or that names no tool.
The figures of an episode are `tool_use_counter` and `tool_success_counter`, as in ROLL, and `tool_error_counter`."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roll.chat.answer_text import BEGIN, END
from roll.chat.conversation import Message, Reply
from roll.core.errors import EnvFailure, ToolFailed
from roll.envs.environment import Info, Observation, Results
from roll.envs.host import EnvHandle
from roll.envs.tools.tool import Tool
from roll.envs.tools.toolbox import Toolbox, Used, explained

NO_CALL = f'a call is {BEGIN}{{"name": ..., "arguments": {{...}}}}{END}, and this is none'


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A call in an answer."""

    tool: Tool | None
    arguments: Mapping[str, Any]
    id: str = ""
    wrong: str = ""
    """The reason why it cannot be made."""


class EnvWithTools:
    """An environment with tools, for one episode."""

    def __init__(self, env: EnvHandle, toolbox: Toolbox, as_messages: bool) -> None:
        """`as_messages`: what tools tell are messages of their own; else observations as any."""
        self._env, self._toolbox, self._as_messages = env, toolbox, as_messages
        self._by_template = toolbox.wrapper.call_format == "template"
        self._args = toolbox.wrapper.wrapper_args
        self._uses = self._successes = 0
        self._running_s = 0.0
        self._state = ""

    @property
    def running_s(self) -> float:
        return self._env.running_s + self._running_s

    @property
    def waiting_s(self) -> float:
        return self._env.waiting_s

    async def reset(self, seed: int) -> tuple[Observation, Info]:
        observation, info = await self._env.reset(seed)
        if not isinstance(observation, str):
            raise EnvFailure("exception", "an environment that shows messages has tools of its own, and no tool_wrapper")
        self._uses = self._successes = 0
        self._state = str(info.get("state_key", ""))
        tools = self._toolbox.tools
        if self._by_template:
            return observation, {**info, "tools": [tool.schema for tool in tools], **self._counts}
        return f"{observation}\n{explained(tools)}", {**info, **self._counts}

    async def step(self, action_text: str, reply: Reply | None = None) -> tuple[Observation | Results, float, bool, bool, Info]:
        """`reply`: the answer as the chat template's form of calls reads it."""
        asked = self._in_words(action_text) if reply is None or not self._by_template else self._by_calls(reply)
        if not asked:
            observation, reward, terminated, truncated, info = await self._env.step(action_text)
            self._state = str(info.get("state_key", ""))
            return observation, reward, terminated, truncated, {**info, **self._counts}
        began = time.perf_counter()
        used = await asyncio.gather(*(self._use(each) for each in asked))
        self._running_s += time.perf_counter() - began
        before = self._uses
        self._uses += len(used)
        self._successes += sum(not each.failed for each in used)
        texts = [each.text for each in used]
        most = self._args.max_tool_uses
        if most is not None and before < most <= self._uses:
            texts[-1] += "\n\nThis was the last call of a tool: answer without tools from here on."
        reward = sum(self._earned(each) for each in used)
        return self._told(asked, texts), reward, False, False, self._info(asked, used, texts)

    async def cut_off(self) -> float:
        return await self._env.cut_off()

    async def close(self) -> None:
        await self._env.close()

    @property
    def _left(self) -> float:
        """Calls that there may still be."""
        most = self._args.max_tool_uses
        return math.inf if most is None else most - self._uses

    def _by_calls(self, reply: Reply) -> list[RequestedCall]:
        if not reply.calls and BEGIN in reply.content:
            return [RequestedCall(None, {}, wrong=NO_CALL)]
        over = "there are no calls of tools left: answer without tools"
        return [
            RequestedCall(self._toolbox.named(call.name), call.arguments, call.id, "" if i < self._left else over)
            for i, call in enumerate(reply.calls)
        ]

    def _in_words(self, text: str) -> list[RequestedCall]:
        """The first call in a text."""
        found = [(place, tool) for tool in self._toolbox.tools if (place := tool.read(text)) is not None]
        if not found or self._left <= 0:
            return []
        (_, handed), tool = min(found, key=lambda each: each[0][0])
        try:
            return [RequestedCall(tool, tool.arguments_of(handed))]
        except ToolFailed as failure:
            return [RequestedCall(tool, {}, wrong=str(failure))]

    async def _use(self, asked: RequestedCall) -> Used:
        if asked.wrong:
            return Used(f"Error: {asked.wrong}", True)
        if asked.tool is None:
            names = ", ".join(tool.name for tool in self._toolbox.tools)
            return Used(f"Error: there is no tool of this name; there are {names}", True)
        return await self._toolbox.run(asked.tool, asked.arguments)

    def _earned(self, used: Used) -> float:
        args = self._args
        if used.failed:
            return args.tool_execute_error_reward or args.tool_reward
        return args.tool_reward + args.tool_success_reward

    def _told(self, asked: Sequence[RequestedCall], texts: Sequence[str]) -> Observation | Results:
        if not self._as_messages:
            return "\n".join(texts)
        if self._by_template and not asked[0].id:  # no call that a result could answer
            return Results([{"role": "user", "content": texts[0]}])
        messages: list[Message] = [{"role": "tool", "content": text} for text in texts]
        for message, each in zip(messages, asked, strict=True):
            if each.id:
                message |= {"tool_call_id": each.id, "name": each.tool.name if each.tool is not None else ""}
        return Results(messages)

    def _info(self, asked: Sequence[RequestedCall], used: Sequence[Used], texts: Sequence[str]) -> Info:
        """Returns the info, whose state is that of the environment, and the tools' texts since."""
        if self._state:
            self._state = hashlib.sha256("\n".join((self._state, *texts)).encode()).hexdigest()
        return {
            "action_is_valid": all(each.tool is not None and not each.wrong for each in asked),
            "action_is_effective": not all(each.failed for each in used),
            "state_key": self._state,
            **self._counts,
        }

    @property
    def _counts(self) -> dict[str, int]:
        errors = self._uses - self._successes
        return {"tool_use_counter": self._uses, "tool_success_counter": self._successes, "tool_error_counter": errors}
