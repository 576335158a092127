"""What the makers of tiny tool callers share: a model whose tokens are whole words, taught what a good player would have written
after each message of a conversation, and then made to hesitate.

The conversations are those of a player who sometimes makes a mistake. So the model knows what to do (greedy decoding) better than
it does it (sampling), which is what training can mend.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from tiny_model import PAD, SPECIAL, reproducible, teach, tiny_qwen2
from tokenizers import AddedToken
from torch import Tensor
from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

NO_TARGET = -100
FIRST_SEED = 2**31
"""Runs draw seeds below it."""
MEASURED_ON = 200
"""Conversations that the model was not taught."""


class Turn(NamedTuple):
    shown: str
    """Message that the model answers."""
    best: str
    played: str


Act = Callable[[str, str], str]
"""(message, a good player's answer) -> the answer."""


@dataclass(frozen=True)
class Lessons:
    """What the result depends on, whatever the conversation."""

    format: int = 2
    """Raised when the maker itself changes."""
    seed: int = 42
    episodes: int = 8000
    wander: float = 0.2
    """Chance that the player makes a mistake."""
    learn_steps: int = 350
    hesitation: float = 0.5
    """The logits are multiplied by this at the end."""
    batch_size: int = 64
    learning_rate: float = 3e-3
    hidden_size: int = 128
    intermediate_size: int = 256
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2


class Conversation(NamedTuple):
    play: Callable[[int, Act], tuple[list[Turn], bool]]
    """(seed, act) -> its turns, and whether it ended well."""
    actions: Sequence[str]
    """All answers that make sense: a token each."""
    mistakes: Sequence[str]
    """What the player answers who makes one."""
    words: str
    """Any other token, see `re`; the last alternative is one character."""
    context: int
    """Tokens that a conversation has at most."""
    also_said: Sequence[str] = ()
    """What no conversation of the player shows, and one of the model may."""
    chat_template: str | None = None


def teach_conversation(folder: Path, talk: Conversation, lessons: Lessons) -> dict[str, float]:
    """Fills an empty folder; returns what was measured."""
    episodes = [talk.play(FIRST_SEED + seed, _player(lessons, talk, seed))[0] for seed in range(lessons.episodes)]
    vocabulary = vocabulary_of([*talk.also_said, *(turn.shown for turns in episodes for turn in turns)], talk)
    ids = {token: i for i, token in enumerate(vocabulary)}
    with reproducible(lessons.seed):
        model = tiny_qwen2(lessons, len(vocabulary), context=talk.context)
        learn(model, *encode(episodes, ids, talk.words), lessons)
        unseen = range(FIRST_SEED + lessons.episodes, FIRST_SEED + lessons.episodes + MEASURED_ON)
        measured = {
            "greedy_success": success(model, vocabulary, talk, unseen, greedy=True),
            "sampled_success": success(model, vocabulary, talk, unseen, greedy=False),
        }
    model.save_pretrained(folder / "model")
    tokenizer = word_tokenizer(vocabulary)
    tokenizer.chat_template = talk.chat_template
    tokenizer.save_pretrained(folder / "model")
    return measured


def vocabulary_of(said: Iterable[str], talk: Conversation) -> list[str]:
    words = {word for text in said for word in re.findall(talk.words, text)}
    return [*SPECIAL, *talk.actions, *sorted(words - {*talk.actions})]


def word_tokenizer(vocabulary: Sequence[str]) -> Qwen2Tokenizer:
    """Qwen2's own class: transformers loads it for a Qwen2 model whatever the folder says. Its words are added tokens, which are
    found whole in a text, longer ones first."""
    special = {token: i for i, token in enumerate(SPECIAL)}
    tokenizer = Qwen2Tokenizer(vocab=special, merges=[], pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in vocabulary[len(SPECIAL) :]])
    return tokenizer


def encode(episodes: Sequence[Sequence[Turn]], ids: Mapping[str, int], words: str) -> tuple[Tensor, Tensor]:
    """[E, T] tokens of whole episodes, and after each message the token that a good player writes."""
    rows, targets = [], []
    for turns in episodes:
        row: list[int] = []
        target: list[int] = []
        for turn in turns:
            shown = [ids[word] for word in re.findall(words, turn.shown)]
            row += [*shown, ids[turn.played]]
            target += [*[NO_TARGET] * (len(shown) - 1), ids[turn.best], NO_TARGET]
        rows.append(torch.tensor(row))
        targets.append(torch.tensor(target))
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(rows, batch_first=True, padding_value=PAD), pad(targets, batch_first=True, padding_value=NO_TARGET)


def learn(model: Qwen2ForCausalLM, tokens: Tensor, targets: Tensor, lessons: Lessons) -> None:
    def loss(_: int) -> Tensor:
        rows = torch.randint(len(tokens), (lessons.batch_size,))
        logits = model(tokens[rows], use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), targets[rows].flatten(), ignore_index=NO_TARGET)

    teach(model, lessons.learn_steps, lessons.learning_rate, loss)
    with torch.no_grad():
        model.lm_head.weight *= lessons.hesitation


@torch.no_grad()
def success(model: Any, vocabulary: Sequence[str], talk: Conversation, seeds: Sequence[int], *, greedy: bool) -> float:
    """Share of the conversations that end well."""
    ids = {token: i for i, token in enumerate(vocabulary)}

    def ends_well(seed: int) -> bool:
        context: list[int] = []

        def act(message: str, best: str) -> str:
            context.extend(ids.get(word, ids["<unk>"]) for word in re.findall(talk.words, message))
            logits = model(torch.tensor([context]), use_cache=False).logits[0, -1]
            context.append(int(logits.argmax() if greedy else torch.multinomial(logits.softmax(-1), 1)))
            return vocabulary[context[-1]]

        return talk.play(seed, act)[1]

    return sum(map(ends_well, seeds)) / len(seeds)


def _player(lessons: Lessons, talk: Conversation, seed: int) -> Act:
    rng = random.Random(seed)
    return lambda message, best: rng.choice(talk.mistakes) if rng.random() < lessons.wander else best
