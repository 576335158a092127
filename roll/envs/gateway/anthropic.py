"""Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from roll.chat.conversation import (
    ChatRequest,
    Message,
    Reply,
    ToolCall,
    assistant,
    field_of,
    function_tool,
    listed,
    text_of,
    tool_call,
)
from roll.chat.session import Session
from roll.core.errors import Refused
from roll.envs.gateway.chat import stop_strings
from roll.envs.gateway.dialect import TYPES, event, pieces
from roll.prompts.messages import Show


class Messages:
    ping = event({"type": "ping"}, "ping")

    def read(self, body: dict[str, Any], session: Session) -> ChatRequest:
        most = field_of(body, "max_tokens", int, least=1)
        if most is None:
            raise Refused(400, "max_tokens: Field required", "max_tokens")
        return _asked(body, most, session.show)

    def reply(self, asked: ChatRequest, reply: Reply, session: Session) -> dict[str, Any]:
        ending = {"stop_reason": _ending(reply), "stop_sequence": None}
        return self._head(asked, reply) | {"content": _blocks(reply), **ending, "usage": _usage(reply)}

    def events(self, asked: ChatRequest, reply: Reply, session: Session) -> Iterator[bytes]:
        def told(kind: str, **more: Any) -> bytes:
            return event({"type": kind, **more}, kind)

        empty: dict[str, Any] = {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**_usage(reply), "output_tokens": 0},
        }
        yield told("message_start", message=self._head(asked, reply) | empty)
        for index, block in enumerate(_blocks(reply)):
            yield told("content_block_start", index=index, content_block=_begun(block))
            for delta in _deltas(block, reply):
                yield told("content_block_delta", index=index, delta=delta)
            yield told("content_block_stop", index=index)
        yield told(
            "message_delta",
            delta={"stop_reason": _ending(reply), "stop_sequence": None},
            usage={"output_tokens": reply.answer_tokens},
        )
        yield told("message_stop")

    def refusal(self, refused: Refused) -> dict[str, Any]:
        kind = TYPES.get(refused.status, "api_error" if refused.status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": refused.message}}

    def refusal_event(self, refused: Refused) -> bytes:
        return event(self.refusal(refused), "error")

    def _head(self, asked: ChatRequest, reply: Reply) -> dict[str, Any]:
        return {"id": reply.call_id, "type": "message", "role": "assistant", "model": asked.model}


def counted(body: dict[str, Any], session: Session) -> ChatRequest:
    """A request whose tokens are to be counted: it need not say how many may be answered. Raises `Refused`."""
    return _asked(body, None, session.show)


def _asked(body: dict[str, Any], most: int | None, show: Show | None) -> ChatRequest:
    system = text_of(body.get("system"))
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for message in listed(body, "messages"):
        messages += _messages(message, show)
    if not any(message["role"] != "system" for message in messages):
        raise Refused(400, "messages: at least one message is required", "messages")
    if messages[-1]["role"] == "assistant":
        raise Refused(400, "prefill is not supported: an answer cannot go on from a text that is begun for it", "messages")
    choice = field_of(body, "tool_choice", dict) or {}
    return ChatRequest(
        messages=messages,
        tools=[_tool(tool) for tool in listed(body, "tools")],
        model=str(body.get("model") or "policy"),
        most=most,
        stop=stop_strings(body, "stop_sequences"),
        stream=bool(field_of(body, "stream", bool)),
        reads_calls=choice.get("type") != "none",
    )


def _tool(tool: dict[str, Any]) -> Message:
    if tool.get("type", "custom") != "custom":
        raise Refused(400, f"a tool of type {tool['type']!r} is not here: only tools with an input_schema are", "tools")
    return function_tool(tool, tool.get("name"), tool.get("input_schema"))


def _messages(given: dict[str, Any], show: Show | None) -> list[Message]:
    role, content = given.get("role"), given.get("content")
    if role == "system":
        return [{"role": "system", "content": text_of(content)}]
    if role not in ("user", "assistant"):
        raise Refused(400, f"a message's role is user, assistant or system, not {role!r}", "messages")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else listed(given, "content")
    return [_answer(blocks)] if role == "assistant" else _told(blocks, show)


def _answer(blocks: list[dict[str, Any]]) -> Message:
    thinking, text, calls = "", "", list[ToolCall]()
    for block in blocks:
        if block.get("type") == "thinking":
            thinking += str(block.get("thinking") or "")
        elif block.get("type") == "tool_use":
            calls.append(tool_call(block.get("id"), block.get("name"), block.get("input")))
        elif block.get("type") != "redacted_thinking":
            text += text_of([block])
    return assistant(text, calls, thinking)


def _told(blocks: list[dict[str, Any]], show: Show | None) -> list[Message]:
    """The results of tools are messages of their own; the texts between them are the user's."""
    messages: list[Message] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            text = text_of(block.get("content"), show=show)
            messages.append({"role": "tool", "content": text, "tool_call_id": str(block.get("tool_use_id") or "")})
        elif messages and messages[-1]["role"] == "user":
            messages[-1]["content"] += text_of([block], show=show)
        else:
            messages.append({"role": "user", "content": text_of([block], show=show)})
    return messages


def _blocks(reply: Reply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reply.thinking:
        blocks.append({"type": "thinking", "thinking": reply.thinking, "signature": ""})
    if reply.content or not reply.calls:
        blocks.append({"type": "text", "text": reply.content})
    for call in reply.calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments})
    return blocks


def _begun(block: dict[str, Any]) -> dict[str, Any]:
    return {**block, **{name: type(block[name])() for name in ("text", "thinking", "input") if name in block}}


def _deltas(block: dict[str, Any], reply: Reply) -> Iterator[dict[str, Any]]:
    if block["type"] == "tool_use":
        call = next(call for call in reply.calls if call.id == block["id"])
        yield {"type": "input_json_delta", "partial_json": call.as_json()}
        return
    name = block["type"]
    for piece in pieces(block[name]):
        yield {"type": f"{name}_delta", name: piece}


def _ending(reply: Reply) -> str:
    if reply.calls:
        return "tool_use"
    return "end_turn" if reply.stopped else "max_tokens"


def _usage(reply: Reply) -> dict[str, int]:
    return {"input_tokens": reply.prompt_tokens, "output_tokens": reply.answer_tokens}
