"""An agent as anybody writes one: it asks a model what some goods cost together, and does what the model asks for.

It knows nothing of training. `OPENAI_BASE_URL` and `OPENAI_API_KEY` lead its client to the policy; `ROLL_SEED` is its task:
prices that nobody knows by heart. `python agent.py` with a model of your own behind that address works as well.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

GOODS = ("apple", "bread", "cheese", "lemon", "pear", "plum")
DEAREST = 9
BASKET = 2
MOST_CALLS = 4
"""Of the model: one for each of the goods, the answer, and one to spare."""
PRICE: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "The price of one piece.",
        "parameters": {
            "type": "object",
            "properties": {"item": {"type": "string", "enum": GOODS}},
            "required": ["item"],
        },
    },
}


def order(seed: int) -> tuple[list[str], dict[str, int]]:
    """What is wanted, and all prices."""
    rng = random.Random(seed)
    prices = {item: rng.randint(1, DEAREST) for item in GOODS}
    return rng.sample(GOODS, BASKET), prices


def question(wanted: list[str]) -> str:
    return f"How much together: {' '.join(wanted)}?"


def looked_up(arguments: str, prices: dict[str, int]) -> str:
    """The tool. What the model writes is looked up, never evaluated."""
    try:
        item = json.loads(arguments)["item"]
        return f"The {item} costs {prices[item]}."
    except (ValueError, TypeError, KeyError):
        return "There is no such item."


def main() -> None:
    from openai import OpenAI

    wanted, prices = order(int(os.environ["ROLL_SEED"]))
    messages: list[Any] = [{"role": "user", "content": question(wanted)}]
    client = OpenAI()
    for _ in range(MOST_CALLS):
        answer = client.chat.completions.create(model="policy", messages=messages, tools=[PRICE]).choices[0].message  # type: ignore[list-item]
        messages.append(answer.model_dump(exclude_none=True))
        if not answer.tool_calls:
            Path("answer.txt").write_text(answer.content or "", encoding="utf-8")
            break
        for call in answer.tool_calls:
            result = looked_up(call.function.arguments, prices) if call.type == "function" else "There is no such tool."
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


if __name__ == "__main__":
    main()
