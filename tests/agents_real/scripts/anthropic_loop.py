"""The same with the client of Anthropic, which streams."""

from __future__ import annotations

from typing import Any

from anthropic import Anthropic
from shop import MODEL, QUESTION, add, answered, price

INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
TOOLS: list[Any] = [
    {"name": tool.__name__, "description": tool.__doc__, "input_schema": {"type": "object", "properties": properties}}
    for tool, properties in ((price, {"item": TEXT}), (add, {"one": INTEGER, "other": INTEGER}))
]


def used(name: str, arguments: Any) -> dict[str, Any]:
    try:
        return {"content": {"price": price, "add": add}[name](**arguments)}
    except Exception as error:
        return {"content": [{"type": "text", "text": f"{type(error).__name__}: {error}"}], "is_error": True}


client = Anthropic()
messages: list[Any] = [{"role": "user", "content": QUESTION}]
system: list[Any] = [{"type": "text", "text": "You work at a till.", "cache_control": {"type": "ephemeral"}}]
for _ in range(6):
    with client.messages.stream(model=MODEL, max_tokens=500, system=system, messages=messages, tools=TOOLS) as stream:
        said = stream.get_final_message()
    messages.append({"role": "assistant", "content": said.content})
    calls = [block for block in said.content if block.type == "tool_use"]
    if not calls:
        answered("".join(block.text for block in said.content if block.type == "text"))
        break
    results = [{"type": "tool_result", "tool_use_id": call.id, **used(call.name, call.input)} for call in calls]
    messages.append({"role": "user", "content": results})
