"""OpenAI's Responses. A request may go on from an earlier response by its id: the session knows what was said up to it."""

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
    thinking_of,
    tool_call,
)
from roll.chat.session import Session
from roll.core.errors import Refused
from roll.envs.gateway.chat import ChatCompletions
from roll.envs.gateway.dialect import event, pieces
from roll.prompts.messages import Show

TEXTS = ("input_text", "output_text", "text", "refusal")
ELSEWHERE = ("conversation", "prompt")
"""Fields that name things of OpenAI's own servers."""
ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}


class Responses(ChatCompletions):
    """Errors have the form of Chat Completions."""

    def read(self, body: dict[str, Any], session: Session) -> ChatRequest:
        if body.get("background"):
            raise Refused(400, "background must be false: the answer is waited for", "background")
        for name in ELSEWHERE:
            if body.get(name) is not None:
                raise Refused(400, f"{name} is kept by the model's vendor, and not here: send what it holds", name)
        messages = _earlier(body, session)
        if instructions := field_of(body, "instructions", str):
            messages.insert(0, {"role": "system", "content": instructions})
        given = body.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else listed(body, "input")
        if not items:
            raise Refused(400, "input must not be empty", "input")
        for item in items:
            _add(messages, item, session.show)
        return ChatRequest(
            messages=messages,
            tools=[_tool(tool) for tool in listed(body, "tools")],
            model=str(body.get("model") or "policy"),
            most=field_of(body, "max_output_tokens", int, least=1),
            stream=bool(field_of(body, "stream", bool)),
            reads_calls=body.get("tool_choice") != "none",
        )

    def reply(self, asked: ChatRequest, reply: Reply, session: Session) -> dict[str, Any]:
        whole = reply.stopped or bool(reply.calls)
        return self._response(asked, reply) | {
            "status": "completed" if whole else "incomplete",
            "incomplete_details": None if whole else {"reason": "max_output_tokens"},
            "output": _items(reply),
            "usage": _tokens(reply),
        }

    def events(self, asked: ChatRequest, reply: Reply, session: Session) -> Iterator[bytes]:
        begun = self._response(asked, reply) | {"status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        said = self.reply(asked, reply, session)
        told: list[dict[str, Any]] = [{"type": f"response.{name}", "response": begun} for name in ("created", "in_progress")]
        for index, item in enumerate(said["output"]):
            told += _item_events(index, item)
        told.append({"type": f"response.{said['status']}", "response": said})
        for number, data in enumerate(told):
            yield event(data | {"sequence_number": number}, data["type"])

    def refusal_event(self, refused: Refused) -> bytes:
        error = self.refusal(refused)["error"]
        told = {"type": "error", "code": error["code"] or error["type"], "message": error["message"], "param": error["param"]}
        return event(told | {"sequence_number": 0}, "error")

    def _response(self, asked: ChatRequest, reply: Reply) -> dict[str, Any]:
        head = self._head(asked, reply, "response")
        head["created_at"] = head.pop("created")
        return head | {
            "error": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }


def _earlier(body: dict[str, Any], session: Session) -> list[Message]:
    """Returns the messages up to an earlier response. Its instructions stay unless the request has its own. Raises `Refused`."""
    earlier = field_of(body, "previous_response_id", str)
    if earlier is None:
        return []
    answer = session.forest.find(earlier)
    if answer is None:
        raise Refused(400, f"the episode has no response {earlier!r}", "previous_response_id", "previous_response_not_found")
    messages = answer.conversation
    own = messages[0]["role"] == "system" and field_of(body, "instructions", str) is not None
    return messages[own:]


def _add(messages: list[Message], item: dict[str, Any], show: Show | None) -> None:
    """Adds an item behind the messages: the model's text, calls and thinking of one turn are one message."""
    kind = item.get("type", "message")
    if kind == "function_call_output":
        text = text_of(item.get("output"), TEXTS, show)
        messages.append({"role": "tool", "content": text, "tool_call_id": str(item.get("call_id") or "")})
    elif kind == "function_call":
        _extend(messages, "", [tool_call(item.get("call_id"), item.get("name"), item.get("arguments"))], "")
    elif kind == "reasoning":
        parts = [*listed(item, "content"), *listed(item, "summary")]
        _extend(messages, "", [], "".join(str(part.get("text") or "") for part in parts))
    elif kind == "message":
        role = ROLES.get(str(item.get("role")))
        if role is None:
            raise Refused(400, f"a message's role is one of {', '.join(ROLES)}, not {item.get('role')!r}", "input")
        text = text_of(item.get("content"), TEXTS, show if role == "user" else None)
        if role == "assistant":
            _extend(messages, text, [], "")
        else:
            messages.append({"role": role, "content": text})
    else:
        raise Refused(400, f"an item of type {kind!r} is not known here", "input")


def _extend(messages: list[Message], text: str, calls: list[ToolCall], thinking: str) -> None:
    last = messages.pop() if messages and messages[-1]["role"] == "assistant" else assistant("", [])
    message = assistant(last["content"] + text, [], thinking_of(last) + thinking)
    made = [*last.get("tool_calls", ()), *assistant("", calls).get("tool_calls", ())]
    messages.append(message | ({"tool_calls": made} if made else {}))


def _tool(tool: dict[str, Any]) -> Message:
    if tool.get("type") != "function":
        raise Refused(400, f"a tool of type {tool.get('type')!r} is not here: only functions are", "tools")
    return function_tool(tool, tool.get("name"), tool.get("parameters"))


def _items(reply: Reply) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    status = "completed" if reply.stopped or reply.calls else "incomplete"
    if reply.thinking:
        content = [{"type": "reasoning_text", "text": reply.thinking}]
        items.append({"id": f"rs_{reply.call_id}", "type": "reasoning", "summary": [], "content": content, "status": status})
    if reply.content or not reply.calls:
        text = {"type": "output_text", "text": reply.content, "annotations": [], "logprobs": []}
        items.append({"id": f"msg_{reply.call_id}", "type": "message", "role": "assistant", "status": status, "content": [text]})
    for call in reply.calls:
        told = {"call_id": call.id, "name": call.name, "arguments": call.as_json(), "status": status}
        items.append({"id": f"fc_{call.id}", "type": "function_call", **told})
    return items


def _item_events(index: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    at = {"output_index": index, "item_id": item["id"]}
    empty: dict[str, Any] = {"content": []} if "content" in item else {"arguments": ""}
    yield {"type": "response.output_item.added", "output_index": index, "item": item | empty | {"status": "in_progress"}}
    if item["type"] == "message":
        (part,) = item["content"]
        yield {"type": "response.content_part.added", **at, "content_index": 0, "part": part | {"text": ""}}
        for piece in pieces(part["text"]):
            yield {"type": "response.output_text.delta", **at, "content_index": 0, "delta": piece, "logprobs": []}
        yield {"type": "response.output_text.done", **at, "content_index": 0, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **at, "content_index": 0, "part": part}
    elif item["type"] == "reasoning":
        text = item["content"][0]["text"]
        for piece in pieces(text):
            yield {"type": "response.reasoning_text.delta", **at, "content_index": 0, "delta": piece}
        yield {"type": "response.reasoning_text.done", **at, "content_index": 0, "text": text}
    else:
        yield {"type": "response.function_call_arguments.delta", **at, "delta": item["arguments"]}
        done = {"arguments": item["arguments"], "name": item["name"]}
        yield {"type": "response.function_call_arguments.done", **at, **done}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _tokens(reply: Reply) -> dict[str, Any]:
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": reply.answer_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + reply.answer_tokens,
    }
