"""A request inside the engine, with the tokens sampled for it so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from roll.core.data.extras import Extras
from roll.core.data.kept_tokens import Ints, KeptTokens
from roll.core.data.routes import Routes
from roll.core.data.sample import FinishReason, VersionSpan
from roll.core.workers.infer_interface import GenerateRequest, GenerateResult
from roll.core.workers.response_text import Tokenizer, response_text
from roll.strategies.infer.stop_strings import StopStringMatcher

ContextKey = tuple[tuple[int, ...], int]
"""A row's tokens and how many of them are its prompt: rows with equal keys are computed alike."""


def split(key: ContextKey) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Prompt and response of a context."""
    tokens, prompt = key
    return tokens[:prompt], tokens[prompt:]


WHOLE: Ints = np.zeros(0, dtype=np.int32)


@dataclass(slots=True, eq=False)
class Row:
    request: GenerateRequest
    limit: int
    """Tokens this call may sample; not positive if there is nothing left to do."""
    stop_ids: frozenset[int]
    matcher: StopStringMatcher | None
    seed: int
    """Seed of 64 bits: with a token's position in the response it gives the number that draws the token."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    kept: list[Ints] = field(default_factory=list)
    """The set that each token was sampled from, if the request asks for it; empty: the vocabulary."""
    routes: Routes | None = None
    """The experts of the tokens that left the cache, from the first that no call before has computed."""
    marks: list[tuple[int, int]] = field(default_factory=list)
    """(first token, version) of each run of tokens of one version."""
    joined_as: ContextKey | None = None
    """The context it was last prefilled with."""
    cached: int = 0
    """Tokens whose keys and values are in the slot: all but the newest sampled one."""
    preempted: bool = False
    """True if it had to leave the cache, for want of blocks."""
    mixed: bool = False
    """No other row may begin with these: some are of other weights, or their experts are not known."""

    @classmethod
    def of(cls, request: GenerateRequest, limit: int, tokenizer: Tokenizer | None, seed: int) -> Row:
        """`seed`: if the request brings none."""
        params = request.sampling
        matcher = None
        if tokenizer is not None and params.stop_strings:
            matcher = StopStringMatcher(tokenizer, params.stop_strings, request.partial_ids)
        given = seed if params.seed is None else params.seed
        return cls(request, limit, frozenset(params.stop_token_ids), matcher, given % 2**64)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def response(self) -> tuple[int, ...]:
        """All response tokens, those of earlier calls included."""
        return (*self.request.partial_ids, *self.tokens)

    @property
    def position(self) -> int:
        """Position of the next token in the response."""
        return len(self.request.partial_ids) + len(self.tokens)

    @property
    def context(self) -> ContextKey:
        return self.request.prompt_ids + self.response, len(self.request.prompt_ids)

    @property
    def first_unrouted(self) -> int:
        """The first token whose experts are in the cache alone. A call before has computed all that it knew but the last."""
        resumed = len(self.request.prompt_ids) + len(self.request.partial_ids) - 1 if self.request.partial_ids else 0
        return resumed + (0 if self.routes is None else len(self.routes))

    def append(self, token: int, logprob: float, version: int, kept: Ints = WHOLE) -> FinishReason | None:
        """Takes a sampled token; the reason if the row ends with it."""
        if not self.marks or self.marks[-1][1] != version:
            self.marks.append((len(self.tokens), version))
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.request.sampling.with_kept:
            self.kept.append(kept)
        stopped = self.matcher is not None and self.matcher.push(token)
        if stopped or token in self.stop_ids:
            return "stop"
        return "length" if len(self.tokens) >= self.limit else None

    def result(self, reason: FinishReason, tokenizer: Tokenizer | None) -> GenerateResult:
        """The result of this call; `text` is the text of this call's tokens."""
        text = "" if tokenizer is None else response_text(tokenizer, self.tokens, self.request.sampling, reason)
        stops = [start for start, _ in self.marks[1:]] + [len(self.tokens)]
        spans = [VersionSpan(start, stop, version) for (start, version), stop in zip(self.marks, stops, strict=False)]
        kept = KeptTokens.of(self.kept) if self.request.sampling.with_kept else None
        extras = Extras(kept, self.routes)
        return GenerateResult(self.request_id, self.tokens, self.logprobs, spans, reason, text, self.preempted, extras)
