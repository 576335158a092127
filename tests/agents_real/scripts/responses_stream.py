"""The plain client of OpenAI over Responses, as a stream; the server remembers what was said (previous_response_id)."""

from __future__ import annotations

import json
from typing import Any

from openai import OpenAI
from shop import MODEL, QUESTION, add, answered, price

INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
TOOLS: list[Any] = [
    {"type": "function", "name": tool.__name__, "description": tool.__doc__, "strict": False}
    | {"parameters": {"type": "object", "properties": properties}}
    for tool, properties in ((price, {"item": TEXT}), (add, {"one": INTEGER, "other": INTEGER}))
]


def used(name: str, arguments: str) -> str:
    try:
        return {"price": price, "add": add}[name](**json.loads(arguments))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


client = OpenAI()
given: list[Any] = [{"role": "user", "content": QUESTION}]
before: dict[str, str] = {}
for _ in range(6):
    with client.responses.stream(model=MODEL, instructions="You work at a till.", input=given, tools=TOOLS, **before) as stream:
        streamed = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        said = stream.get_final_response()
    assert streamed == said.output_text
    calls = [item for item in said.output if item.type == "function_call"]
    if not calls:
        answered(said.output_text)
        break
    given = [
        {"type": "function_call_output", "call_id": call.call_id, "output": used(call.name, call.arguments)} for call in calls
    ]
    before = {"previous_response_id": said.id}
