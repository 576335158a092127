"""The text of a response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from roll.core.workers.infer_interface import SamplingParams


class Tokenizer(Protocol):
    """The part of a tokenizer that engines need."""

    def decode(self, ids: list[int], /, *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str | list[str]:
        """Returns a text, for one list of tokens."""


def response_text(tokenizer: Tokenizer, tokens: Sequence[int], sampling: SamplingParams, reason: str) -> str:
    """Returns the text of a response without special tokens, and without the token that ended it, special or not. A stop string
    ends the text (the tokens that spell it stay in the response)."""
    shown = without_end(tokens, sampling, reason)
    text = str(tokenizer.decode(shown, skip_special_tokens=True, clean_up_tokenization_spaces=False))
    return cut_at_stop(text, sampling.stop_strings, sampling.include_stop_str_in_output) if reason == "stop" else text


def without_end(tokens: Sequence[int], sampling: SamplingParams, reason: str) -> list[int]:
    """Returns the tokens that make the text of a response: all but the end token that it was sampled with."""
    ended = reason == "stop" and len(tokens) > 0 and tokens[-1] in sampling.stop_token_ids
    return list(tokens[:-1] if ended else tokens)


def cut_at_stop(text: str, stop_strings: Sequence[str], include: bool) -> str:
    """Returns `text` up to its first stop string, with or without it."""
    found = [(at, stop) for stop in stop_strings if (at := text.find(stop)) >= 0]
    if not found:
        return text
    at, stop = min(found)
    return text[: at + len(stop) * include]
