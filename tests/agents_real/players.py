"""Who plays a program's model, before there is a model: what may be said, and what a good player says in a conversation."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from scripts.shop import DEAREST, GOODS

PRICE = re.compile(r"The (apple|pear) costs (\d)\.")
SUM = re.compile(r"The sum is (\d+)\.")
NUMBERS = range(1, DEAREST + 1)
SUMS = range(2, 2 * DEAREST + 1)


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@dataclass(frozen=True)
class Player:
    best: Callable[[str], str]
    """The conversation, as the chat template shows it -> the answer of a good player."""
    answers: tuple[str, ...]
    """All that may be said; each is a token of the model that is taught."""


def shopper(look: str, add: Callable[[int, int], str], last: Callable[[int], str], *others: str) -> Player:
    """`look`: what asks for both prices. `last`: the end, told the sum. `others`: what may be said besides."""

    def best(text: str) -> str:
        if sums := SUM.findall(text):
            return last(int(sums[-1]))
        found = {item: int(number) for item, number in PRICE.findall(text)}
        return add(found["apple"], found["pear"]) if len(found) == len(GOODS) else look

    made = [add(one, other) for one, other in itertools.product(NUMBERS, NUMBERS)]
    return Player(best, tuple(dict.fromkeys([look, *made, *map(last, SUMS), *others])))


def _adds(one: int, other: int) -> str:
    return call("add", one=one, other=other)


LOOKS = "\n".join(call("price", item=item) for item in GOODS)
ONE_LOOK = call("price", item=GOODS[0])
BY_TEXT = shopper(LOOKS, _adds, str, ONE_LOOK)
HANDS_OVER = call("transfer_to_till")
BY_TWO = Player(lambda text: HANDS_OVER if "You direct" in text else BY_TEXT.best(text), (*BY_TEXT.answers, HANDS_OVER))
BY_TYPE = shopper(LOOKS, _adds, lambda total: call("final_result", response=total), ONE_LOOK)
BY_TOOL = shopper(LOOKS, _adds, lambda total: call("final_answer", answer=str(total)), ONE_LOOK)


BY_TURNS = shopper("prices?", lambda one, other: f"{one} + {other}", str)


def code(text: str) -> str:
    return f"Thought: so it is.\n<code>\n{text}\n</code>"


BY_CODE = shopper(
    code("\n".join(f'print(price("{item}"))' for item in GOODS)),
    lambda one, other: code(f"print(add({one}, {other}))"),
    lambda total: code(f"final_answer({total})"),
)

SHOWS, TESTS, ENDS = (
    call("bash", command=command)
    for command in ("cat till.py test_till.py", "python3 test_till.py", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
)
BODIES = ("one + other", "other * one", "one / other")
MENDS = {body: call("bash", command=f"sed -i 's/return .*/return {body}/' till.py") for body in BODIES}


def _repairs(text: str) -> str:
    last = max(MENDS, key=lambda body: text.rfind(f"return {body}/"))
    if f"return {last}/" not in text:
        return SHOWS if "assert total" not in text else MENDS["one + other"]
    if last != "one + other":
        return MENDS["one + other"]
    return ENDS if '"output": "all is well' in text[text.rfind("return one + other/") :] else TESTS


BY_REPAIR = Player(_repairs, (SHOWS, TESTS, ENDS, *MENDS.values()))
