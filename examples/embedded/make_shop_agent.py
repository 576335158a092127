"""Makes the embedded agent of agent_program_async.yaml: a tiny real language model that was taught to call a tool, and then made
to hesitate.

`python examples/embedded/make_shop_agent.py [--out DIR] [--force]` writes `model/`. Nothing is downloaded. The conversations are
those of examples/agent_program/agent.py. How the model is taught: taught_turns.py.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "agent_program"))

from agent import BASKET, DEAREST, GOODS, MOST_CALLS, looked_up, order, question
from made_folder import command_line, make_folder
from taught_turns import Act, Conversation, Lessons, Turn, teach_conversation

DEFAULT_OUT = Path(__file__).resolve().parent / "cache_shop_agent"
TEMPLATE = (
    "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}{% for message in messages %}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    '<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}{{ '\\n' }}{% endfor %}"
)
"""Tools by their names, and each message on a line of its own."""
WORDS = r"<tool_call>.*?</tool_call>|\w+|[\s\S]"
"""What a token is: a whole call, a word, a number, or any other character."""


@dataclass(frozen=True)
class Settings(Lessons):
    template: str = TEMPLATE
    goods: tuple[str, ...] = GOODS
    dearest: int = DEAREST
    basket: int = BASKET
    most_calls: int = MOST_CALLS
    learn_steps: int = 800
    hesitation: float = 0.3


def call(item: str) -> str:
    return f'<tool_call>{{"name": "price", "arguments": {json.dumps({"item": item})}}}</tool_call>'


class Shop:
    """A conversation of the agent, from the model's side."""

    def __init__(self, seed: int) -> None:
        self.wanted, self._prices = order(seed)
        self._known: set[str] = set()
        self.shown = f"[price]{question(self.wanted)}\n"

    @property
    def best(self) -> str:
        unknown = [item for item in self.wanted if item not in self._known]
        return call(unknown[0]) if unknown else str(self.sum)

    @property
    def sum(self) -> int:
        return sum(self._prices[item] for item in self.wanted)

    def say(self, text: str) -> bool:
        """The model's turn; whether the conversation is over."""
        if not text.startswith("<tool_call>"):
            return True
        arguments = json.dumps(json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))["arguments"])
        self._known.add(json.loads(arguments)["item"])
        self.shown = f"\n{looked_up(arguments, self._prices)}\n"
        return False


def play(seed: int, act: Act) -> tuple[list[Turn], bool]:
    shop = Shop(seed)
    turns: list[Turn] = []
    while len(turns) < MOST_CALLS:
        turns.append(Turn(shop.shown, shop.best, act(shop.shown, shop.best)))
        if shop.say(turns[-1].played):
            return turns, turns[-1].played == str(shop.sum)
    return turns, False


def build(folder: Path, settings: Settings) -> dict[str, float]:
    calls = [*map(call, GOODS)]
    actions = [*calls, *map(str, range(1, BASKET * DEAREST + 1))]
    return teach_conversation(folder, Conversation(play, actions, calls, WORDS, context=128, chat_template=TEMPLATE), settings)


def make(out: Path = DEFAULT_OUT, force: bool = False, settings: Settings = Settings()) -> Path:
    return make_folder(out, settings, build, force)


if __name__ == "__main__":
    command_line("Makes the embedded agent that calls a tool (about two minutes).", DEFAULT_OUT, make)
