"""Finds stop strings in a growing response, detokenising only its newest tokens."""

from __future__ import annotations

from collections.abc import Sequence

from roll.core.workers.response_text import Tokenizer

UNFINISHED = "\ufffd"
"""Decoded text of a character whose bytes are not all there yet."""


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
