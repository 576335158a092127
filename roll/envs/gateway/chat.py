"""OpenAI's Chat Completions, and the form of errors that it shares with Responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from roll.chat.conversation import (
    ChatRequest,
    Message,
    Reply,
    ToolCall,
    field_of,
    listed,
    read_message,
    read_tool,
)
from roll.chat.session import Session
from roll.core.errors import Refused
from roll.envs.gateway.dialect import TYPES, event, pieces

DONE = b"data: [DONE]\n\n"


class ChatCompletions:
    ping = b": keep-alive\n\n"

    def read(self, body: dict[str, Any], session: Session) -> ChatRequest:
        if field_of(body, "n", int) not in (None, 1):
            raise Refused(400, "n must be 1: ask once for each answer", "n")
        if body.get("functions"):
            raise Refused(400, "functions are read no longer: send them as tools", "functions")
        limits = [field_of(body, name, int, least=1) for name in ("max_completion_tokens", "max_tokens")]
        messages = [read_message(message, session.show) for message in listed(body, "messages")]
        if not messages:
            raise Refused(400, "messages must not be empty", "messages")
        options = field_of(body, "stream_options", dict) or {}
        return ChatRequest(
            messages=messages,
            tools=[read_tool(tool) for tool in listed(body, "tools")],
            model=str(body.get("model") or "policy"),
            most=min((limit for limit in limits if limit is not None), default=None),
            stop=stop_strings(body, "stop"),
            stream=bool(field_of(body, "stream", bool)),
            reads_calls=body.get("tool_choice") != "none",
            with_usage=bool(options.get("include_usage")),
        )

    def reply(self, asked: ChatRequest, reply: Reply, session: Session) -> dict[str, Any]:
        message: Message = {"role": "assistant", "content": reply.content, "refusal": None}
        if reply.thinking:
            message["reasoning_content"] = reply.thinking
        if reply.calls:
            message["content"] = reply.content or None
            message["tool_calls"] = [_call(call) for call in reply.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _ending(reply)}
        return self._head(asked, reply, "chat.completion") | {"choices": [choice], "usage": _usage(reply)}

    def events(self, asked: ChatRequest, reply: Reply, session: Session) -> Iterator[bytes]:
        head = self._head(asked, reply, "chat.completion.chunk")

        def chunk(delta: dict[str, Any], ending: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": ending}
            return event(head | {"choices": [choice]})

        yield chunk({"role": "assistant", "content": ""})
        for piece in pieces(reply.thinking):
            yield chunk({"reasoning_content": piece})
        for piece in pieces(reply.content):
            yield chunk({"content": piece})
        for index, call in enumerate(reply.calls):
            yield chunk({"tool_calls": [{"index": index, **_call(call)}]})
        yield chunk({}, _ending(reply))
        if asked.with_usage:
            yield event(head | {"choices": [], "usage": _usage(reply)})
        yield DONE

    def refusal(self, refused: Refused) -> dict[str, Any]:
        kind = TYPES.get(refused.status, "server_error" if refused.status >= 500 else "invalid_request_error")
        return {"error": {"message": refused.message, "type": kind, "param": refused.param, "code": refused.code}}

    def refusal_event(self, refused: Refused) -> bytes:
        return event(self.refusal(refused))

    def _head(self, asked: ChatRequest, reply: Reply, kind: str) -> dict[str, Any]:
        return {"id": reply.call_id, "object": kind, "created": reply.created, "model": asked.model}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.as_json()}}


def _ending(reply: Reply) -> str:
    if reply.calls:
        return "tool_calls"
    return "stop" if reply.stopped else "length"


def _usage(reply: Reply) -> dict[str, int]:
    total = reply.prompt_tokens + reply.answer_tokens
    return {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.answer_tokens, "total_tokens": total}


def stop_strings(body: dict[str, Any], name: str) -> tuple[str, ...]:
    """Raises `Refused`."""
    given = body.get(name)
    found = [given] if isinstance(given, str) else given or []
    if not isinstance(found, list) or not all(isinstance(stop, str) and stop for stop in found):
        raise Refused(400, f"{name} must be texts that are not empty", name)
    return tuple(found)
