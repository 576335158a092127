"""A shop whose prices only its till knows: an environment with a tool, to be copied and changed.

The agent is asked what some goods cost together. It may call the tool `price`, sees what the tool returned in its next turn, and
gives the sum. Prices are drawn from the episode's seed, so nobody knows them by heart: without the tool the answer is a guess.
Calls have the form that Qwen2.5 and others were trained to write.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

GOODS = ("apple", "bread", "cheese", "lemon", "pear", "plum")
CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
ANSWER = re.compile(r"<answer>\s*(\d{1,9})\s*</answer>")
LONGEST_TEXT = 4096
"""Characters that are looked at, from the end."""
SIGNATURE = {
    "name": "price",
    "description": "The price of one piece.",
    "parameters": {"type": "object", "properties": {"item": {"type": "string", "enum": GOODS}}, "required": ["item"]},
}
INSTRUCTIONS = f"""You are at the till of a shop. <tools>{json.dumps(SIGNATURE)}</tools>
To call the tool write <tool_call>{{"name": "price", "arguments": {{"item": "{GOODS[0]}"}}}}</tool_call>, one call a turn; its
result follows in the next turn. When you know the sum write <answer>number</answer>."""

Info = dict[str, Any]


class ToolError(Exception):
    """The call has no result; the message is for the agent."""


class Shop:
    def __init__(self, basket: int = 2, dearest: int = 9, call_reward: float = 0.0, format_penalty: float = 0.0) -> None:
        """`basket`: different goods in a question. `dearest`: prices are from 1 to this. `call_reward`: for each call that has a
        result (below 0: calls cost something). `format_penalty`: for a text with neither call nor answer."""
        if not 1 <= basket <= len(GOODS):
            raise ValueError(f"basket must be from 1 to {len(GOODS)}")
        self.instructions = INSTRUCTIONS
        self._basket, self._dearest = basket, dearest
        self._call_reward, self._format_penalty = call_reward, format_penalty

    def reset(self, seed: int) -> tuple[str, Info]:
        rng = random.Random(seed)
        self._prices = {item: rng.randint(1, self._dearest) for item in GOODS}
        self._wanted = rng.sample(GOODS, self._basket)
        self._seen: dict[str, int] = {}
        self._calls = 0
        return f"How much together: {' '.join(self._wanted)}?", {"state_key": self._state()}

    def step(self, action_text: str) -> tuple[str, float, bool, bool, Info]:
        """An answer ends the episode; of a text with an answer and a call, the answer counts, and of several, the last."""
        text = action_text[-LONGEST_TEXT:]
        answers, calls = ANSWER.findall(text), CALL.findall(text)
        if answers:
            right = int(answers[-1]) == self._sum()
            return "", float(right), True, False, self._info(valid=True, effective=True, success=right)
        if not calls:
            said = "There was neither a call of the tool nor an answer."
            return said, self._format_penalty, False, False, self._info(valid=False, effective=False)
        try:
            item, price = self._call(calls[-1])
        except ToolError as error:
            return f"The tool failed: {error}", 0.0, False, False, self._info(valid=True, effective=False)
        new = item not in self._seen
        self._seen[item] = price
        self._calls += 1
        return f"The {item} costs {price}.", self._call_reward, False, False, self._info(valid=True, effective=new)

    def close(self) -> None:
        pass

    def sample_action(self, rng: random.Random) -> str:
        return rng.choice((call(rng.choice(GOODS)), answer(rng.randint(1, self._basket * self._dearest))))

    def oracle_action(self) -> str:
        unknown = [item for item in self._wanted if item not in self._seen]
        return call(unknown[0]) if unknown else answer(self._sum())

    def _call(self, text: str) -> tuple[str, int]:
        """The item and its price. The text is the model's: it is parsed as JSON and looked up, never evaluated."""
        try:
            given = json.loads(text)
        except (ValueError, RecursionError):
            raise ToolError("the call is not valid JSON") from None
        if not isinstance(given, dict) or given.get("name") != SIGNATURE["name"]:
            raise ToolError(f"there is one tool, {SIGNATURE['name']}")
        arguments = given.get("arguments")
        item = arguments.get("item") if isinstance(arguments, dict) else None
        if not isinstance(item, str) or item not in self._prices:
            raise ToolError(f"item must be one of {', '.join(GOODS)}")
        return item, self._prices[item]

    def _sum(self) -> int:
        return sum(self._prices[item] for item in self._wanted)

    def _state(self) -> str:
        return f"{self._wanted} {sorted(self._seen.items())}"

    def _info(self, *, valid: bool, effective: bool, success: bool = False) -> Info:
        return {
            "action_is_valid": valid,
            "action_is_effective": effective,
            "success": success,
            "state_key": self._state(),
            "tool_calls": self._calls,
        }


def call(item: str) -> str:
    return f"<tool_call>{json.dumps({'name': SIGNATURE['name'], 'arguments': {'item': item}})}</tool_call>"


def answer(number: int) -> str:
    return f"<answer>{number}</answer>"
