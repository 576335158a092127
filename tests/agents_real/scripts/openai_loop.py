"""A loop around the plain client of OpenAI, with two tools."""

from __future__ import annotations

import inspect
import json
from typing import Any

from openai import OpenAI
from shop import MODEL, QUESTION, add, answered, price

TOOLS = {"price": price, "add": add}
KINDS = {"str": "string", "int": "integer"}


def described(tool: Any) -> Any:
    properties = {name: {"type": KINDS[str(each.annotation)]} for name, each in inspect.signature(tool).parameters.items()}
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "function", "function": {"name": tool.__name__, "description": tool.__doc__, "parameters": parameters}}


def used(name: str, arguments: str) -> str:
    try:
        return str(TOOLS[name](**json.loads(arguments)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


client = OpenAI()
messages: list[Any] = [{"role": "system", "content": "You work at a till."}, {"role": "user", "content": QUESTION}]
for _ in range(6):
    said = client.chat.completions.create(model=MODEL, messages=messages, tools=[described(tool) for tool in TOOLS.values()])
    message = said.choices[0].message
    messages.append(message)
    if not message.tool_calls:
        answered(message.content)
        break
    for call in message.tool_calls:
        result = used(call.function.name, call.function.arguments)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
