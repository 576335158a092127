"""Finds stop strings in a growing response, detokenising only its newest tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from roll.strategies.infer.interface import SamplingParams

UNFINISHED = "\ufffd"
"""What decoding yields for a character whose bytes are not all there yet."""


class Tokenizer(Protocol):
    """What engines need of one."""

    def decode(self, ids: list[int], /, *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str | list[str]:
        """A text, for one list of tokens."""


class StopStringMatcher:
    """Incremental detokenisation: a token's text is the growth of the text of the few tokens before it, so that spaces and
    characters that several tokens share come out right. Special tokens count as text, so a stop string may name one."""

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str], earlier_ids: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop_strings = stop_strings
        self._reach = max(map(len, stop_strings)) - 1
        self._ids: list[int] = []
        self._context = 0
        """Tokens from here to `_read` are decoded again as context of the new ones."""
        self._read = 0
        """Tokens before here are in `_tail`."""
        self._tail = ""
        """The last `_reach` characters of the text so far: a stop string may have begun in them."""
        for token in earlier_ids:
            self.push(token)

    def push(self, token: int) -> bool:
        """Takes the next token; True if a stop string ends in it."""
        self._ids.append(token)
        before = self._decode(self._ids[self._context : self._read])
        text = self._decode(self._ids[self._context :])
        if len(text) <= len(before) or text.endswith(UNFINISHED):
            return False
        self._context, self._read = self._read, len(self._ids)
        fresh = self._tail + text[len(before) :]
        self._tail = fresh[len(fresh) - self._reach :] if self._reach < len(fresh) else fresh
        return any(stop in fresh for stop in self._stop_strings)

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def response_text(tokenizer: Tokenizer, tokens: Sequence[int], sampling: SamplingParams, reason: str) -> str:
    """The text of a response without special tokens, and without the token that ended it, special or not. A stop string ends the
    text (the tokens that spell it stay in the response)."""
    shown = without_end(tokens, sampling, reason)
    text = str(tokenizer.decode(shown, skip_special_tokens=True, clean_up_tokenization_spaces=False))
    return cut_at_stop(text, sampling.stop_strings, sampling.include_stop_str_in_output) if reason == "stop" else text


def without_end(tokens: Sequence[int], sampling: SamplingParams, reason: str) -> list[int]:
    """Tokens that make the text of a response: all but the end token that it was sampled with."""
    ended = reason == "stop" and len(tokens) > 0 and tokens[-1] in sampling.stop_token_ids
    return list(tokens[:-1] if ended else tokens)


def cut_at_stop(text: str, stop_strings: Sequence[str], include: bool) -> str:
    """`text` up to its first stop string, with or without it."""
    found = [(at, stop) for stop in stop_strings if (at := text.find(stop)) >= 0]
    if not found:
        return text
    at, stop = min(found)
    return text[: at + len(stop) * include]
