"""Conversations of an agent with a model, in the one form that all dialects are read into: that of chat templates.

Two messages are the same here if they differ only in what clients change on the way: the order of the keys of a tool's
arguments and the spaces between them, 1 for 1.0, ids of calls, white space around an answer, and thinking that is left out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from roll.core.data.untrusted import complaint
from roll.core.errors import Refused
from roll.prompts.messages import ROLES, Show, joined

Message: TypeAlias = dict[str, Any]
SHOWING = ("user", "tool")
"""Roles whose messages may have images."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: Any
    """A mapping; a text if it is not the JSON of one."""

    def as_json(self) -> str:
        """The arguments, as a dialect carries them."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A request, read."""

    messages: list[Message]
    tools: list[Message] = field(default_factory=list)
    model: str = "policy"
    """Name that the program gives it; answers repeat it."""
    most: int | None = None
    """Tokens of the answer, if the program limits them."""
    stop: tuple[str, ...] = ()
    stream: bool = False
    reads_calls: bool = True
    """False: calls of tools in the answer are text."""
    with_usage: bool = False
    """OpenAI's streams say the usage only if they are asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer, before a dialect has put it into its form."""

    call_id: str
    content: str
    thinking: str
    calls: list[ToolCall]
    stopped: bool
    prompt_tokens: int
    answer_tokens: int
    created: int

    @property
    def message(self) -> Message:
        return assistant(self.content, self.calls, self.thinking)


def assistant(content: str, calls: Sequence[ToolCall], thinking: str = "") -> Message:
    message: Message = {"role": "assistant", "content": content}
    if thinking:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in calls
        ]
    return message


def tool_call(id: object, name: object, arguments: object) -> ToolCall:
    """A call as a program sends it back. Raises `Refused`."""
    if not isinstance(name, str) or not name:
        raise Refused(400, "a tool call needs a name")
    if arguments is None or arguments == "":
        arguments = {}
    if isinstance(arguments, str):
        try:
            read = json.loads(arguments)
        except (ValueError, RecursionError):
            read = None
        arguments = read if isinstance(read, dict) else arguments
    return ToolCall(str(id or ""), name, arguments)


def read_message(given: Mapping[str, Any], show: Show | None = None) -> Message:
    """A message in OpenAI's form; users and tools may show images, if there is `show`. Raises `Refused`."""
    role = ROLES.get(str(given.get("role")))
    if role is None:
        raise Refused(400, f"a message's role is one of {', '.join(ROLES)}, not {given.get('role')!r}", "messages")
    kinds = ("text", "refusal") if role == "assistant" else ("text",)
    content = text_of(given.get("content"), kinds, show if role in SHOWING else None)
    if role == "assistant":
        thinking = given.get("reasoning_content") or given.get("reasoning")
        return assistant(content, [_read_call(call) for call in listed(given, "tool_calls")], str(thinking or ""))
    message: Message = {"role": role, "content": content}
    if role == "tool":
        message["tool_call_id"] = str(given.get("tool_call_id") or "")
    return message


def _read_call(call: Mapping[str, Any]) -> ToolCall:
    function = field_of(call, "function", dict) or {}
    return tool_call(call.get("id"), function.get("name"), function.get("arguments"))


def read_tool(tool: Mapping[str, Any]) -> Message:
    """A tool in OpenAI's form. Raises `Refused`."""
    if tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
        raise Refused(400, "a tool is {type: function, function: {...}}", "tools")
    function = tool["function"]
    return function_tool(function, function.get("name"), function.get("parameters"))


def canonical(value: object) -> str:
    """JSON that is equal for equal values."""
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def shown(messages: Sequence[Message]) -> str:
    """Returns the messages as text for people."""
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages)


def thinking_of(message: Message) -> str:
    return str(message.get("reasoning_content") or "").strip()


def digests(tools: Sequence[Message], messages: Sequence[Message]) -> list[bytes]:
    """One for each message: of it and all before it."""
    found, running = [], hashlib.sha256(canonical(list(tools)).encode()).digest()
    for message in messages:
        running = further(running, message)
        found.append(running)
    return found


def further(before: bytes, message: Message) -> bytes:
    """The digest of a conversation and one message more."""
    return hashlib.sha256(before + _key(message).encode()).digest()


def _key(message: Message) -> str:
    role, content = message["role"], str(message["content"])
    calls = [[call["function"]["name"], canonical(call["function"]["arguments"])] for call in message.get("tool_calls") or ()]
    return canonical([role, content.strip() if role == "assistant" else content, calls])


def text_of(content: object, kinds: Sequence[str] = ("text",), show: Show | None = None) -> str:
    """The text of a message's content: a text, nothing, or a list of parts, as `joined` takes them. Raises `Refused`."""
    if content is None:
        return ""
    try:
        return joined(content, kinds, show)
    except ValueError as error:
        raise Refused(400, str(error)) from None


def field_of(body: Mapping[str, Any], name: str, kind: type, least: int | None = None) -> Any:
    """A field of a request, or None. Raises `Refused` for a value of another type."""
    value: Any = body.get(name)
    if value is None:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise Refused(400, f"{name} must be {'a whole number' if kind is int else f'a {kind.__name__}'}", name)
    if least is not None and body[name] < least:
        raise Refused(400, f"{name} must be >= {least}", name)
    return value


def listed(body: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """A list of mappings; empty if it is not there. Raises `Refused`."""
    values = field_of(body, name, list) or []
    if not all(isinstance(value, dict) for value in values):
        raise Refused(400, f"{name} must be a list of objects", name)
    return list(values)


def function_tool(given: Mapping[str, Any], name: object, parameters: object) -> Message:
    """A tool as chat templates show it. Raises `Refused`."""
    if not isinstance(name, str) or not name:
        raise Refused(400, "a tool needs a name", "tools")
    function: Message = {"name": name, "description": str(given.get("description") or "")}
    function["parameters"] = parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def whole_body(text: bytes) -> dict[str, Any]:
    """The body of a request. Raises `Refused`."""
    try:
        body = json.loads(text or b"{}", parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object")
    if wrong := complaint(body):
        raise Refused(400, f"the body {wrong}")
    return body


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")
