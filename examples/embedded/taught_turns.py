"""What the makers of tiny tool callers share: a model whose tokens are whole words, taught what a good player would have written
after each message of a conversation, and then made to hesitate."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from tiny_model import PAD, SPECIAL, teach
from tokenizers import AddedToken
from torch import Tensor
from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

NO_TARGET = -100


class Turn(NamedTuple):
    shown: str
    """Message that the model answers."""
    best: str
    played: str


class Lessons(Protocol):
    batch_size: int
    learning_rate: float
    learn_steps: int
    hesitation: float
    """The logits are multiplied by this at the end."""


def word_tokenizer(vocabulary: Sequence[str]) -> Qwen2Tokenizer:
    """Qwen2's own class: transformers loads it for a Qwen2 model whatever the folder says. Its words are added tokens, which are
    found whole in a text, longer ones first."""
    special = {token: i for i, token in enumerate(SPECIAL)}
    tokenizer = Qwen2Tokenizer(vocab=special, merges=[], pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in vocabulary[len(SPECIAL) :]])
    return tokenizer


def encode(episodes: Sequence[Sequence[Turn]], ids: Mapping[str, int], words: str) -> tuple[Tensor, Tensor]:
    """[E, T] tokens of whole episodes, and after each message the token that a good player writes. `words`: see `re`; what a
    token is."""
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
