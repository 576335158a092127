"""Makes the embedded agent of agent_program_async.yaml: a tiny real language model that was taught to call a tool, and then made
to hesitate.

`python examples/embedded/make_shop_agent.py [--out DIR] [--force]` writes `model/`. Nothing is downloaded. The model sees the
conversations of examples/agent_program/agent.py with a player who sometimes asks for the price of the wrong goods, and learns
what a good player would have answered in each turn; then its logits are scaled down. So it knows what to do (greedy decoding)
better than it does it (sampling), which is what training can mend.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "agent_program"))

import torch
from agent import BASKET, DEAREST, GOODS, MOST_CALLS, looked_up, order, question
from made_folder import command_line, make_folder
from taught_turns import Turn, encode, learn, word_tokenizer
from tiny_model import SPECIAL, reproducible, tiny_qwen2
from transformers import Qwen2ForCausalLM

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
FIRST_SEED = 2**31
"""Runs draw seeds below it."""
MEASURED_ON = 200


@dataclass(frozen=True)
class Settings:
    """All that the result depends on."""

    format: int = 1
    """Raised when the maker itself changes."""
    template: str = TEMPLATE
    goods: tuple[str, ...] = GOODS
    dearest: int = DEAREST
    basket: int = BASKET
    most_calls: int = MOST_CALLS
    seed: int = 42
    episodes: int = 8000
    wander: float = 0.2
    """Chance that the player of the episodes calls the tool for any of the goods."""
    learn_steps: int = 800
    hesitation: float = 0.3
    """The logits are multiplied by this at the end."""
    batch_size: int = 64
    learning_rate: float = 3e-3
    hidden_size: int = 128
    intermediate_size: int = 256
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2


def call(item: str) -> str:
    return f'<tool_call>{{"name": "price", "arguments": {json.dumps({"item": item})}}}</tool_call>'


class Shop:
    """A conversation of the agent, from the model's side."""

    def __init__(self, seed: int) -> None:
        self.wanted, self._prices = order(FIRST_SEED + seed)
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


def play(seed: int, settings: Settings) -> list[Turn]:
    rng, shop = random.Random(seed), Shop(seed)
    turns: list[Turn] = []
    over = False
    while not over and len(turns) < settings.most_calls:
        best = shop.best
        turns.append(Turn(shop.shown, best, call(rng.choice(GOODS)) if rng.random() < settings.wander else best))
        over = shop.say(turns[-1].played)
    return turns


def vocabulary_of(episodes: Sequence[Sequence[Turn]]) -> list[str]:
    """Every call, every number, and every word that the agent says."""
    said = [turn.shown for turns in episodes for turn in turns]
    numbers = [str(number) for number in range(1, BASKET * DEAREST + 1)]
    words = {word for text in said for word in re.findall(WORDS, text)} - {*numbers}
    return [*SPECIAL, *map(call, GOODS), *numbers, *sorted(words)]


@torch.no_grad()
def success(model: Qwen2ForCausalLM, vocabulary: Sequence[str], settings: Settings, *, greedy: bool) -> float:
    """Share of the conversations that end with the right sum."""
    ids, won = {token: i for i, token in enumerate(vocabulary)}, 0
    for episode in range(MEASURED_ON):
        shop, context, over, said = Shop(settings.episodes + episode), [], False, ""
        for _ in range(settings.most_calls):
            context += [ids[word] for word in re.findall(WORDS, shop.shown)]
            logits = model(torch.tensor([context]), use_cache=False).logits[0, -1]
            context.append(int(logits.argmax() if greedy else torch.multinomial(logits.softmax(-1), 1)))
            said = vocabulary[context[-1]]
            over = shop.say(said)
            if over:
                break
        won += over and said == str(shop.sum)
    return won / MEASURED_ON


def build(folder: Path, settings: Settings) -> dict[str, float]:
    """Fills an empty folder; returns what was measured."""
    episodes = [play(seed, settings) for seed in range(settings.episodes)]
    vocabulary = vocabulary_of(episodes)
    with reproducible(settings.seed):
        model = tiny_qwen2(settings, len(vocabulary), context=128)
        learn(model, *encode(episodes, {token: i for i, token in enumerate(vocabulary)}, WORDS), settings)
        measured = {
            "greedy_success": success(model, vocabulary, settings, greedy=True),
            "sampled_success": success(model, vocabulary, settings, greedy=False),
        }
    model.save_pretrained(folder / "model")
    tokenizer = word_tokenizer(vocabulary)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder / "model")
    return measured


def make(out: Path = DEFAULT_OUT, force: bool = False, settings: Settings = Settings()) -> Path:
    made: Path = make_folder(out, settings, build, force)
    return made


if __name__ == "__main__":
    command_line("Makes the embedded agent that calls a tool (about two minutes).", DEFAULT_OUT, make)
