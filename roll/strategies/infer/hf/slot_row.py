"""A request inside the engine, with what was sampled for it so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from roll.data.sample import FinishReason, VersionSpan
from roll.strategies.infer.interface import GenerateRequest, GenerateResult
from roll.strategies.infer.stop_strings import StopStringMatcher, cut_at_stop

ContextKey = tuple[tuple[int, ...], int]
"""A row's tokens and how many of them are its prompt: rows with equal keys are computed alike."""


@dataclass(slots=True, eq=False)
class Row:
    request: GenerateRequest
    limit: int
    """Tokens this call may sample; not positive if there is nothing left to do."""
    stop_ids: frozenset[int]
    matcher: StopStringMatcher | None
    uniforms: list[float] = field(default_factory=list)
    """One number of [0, 1) for each token of this call; drawn on admission."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)
    """(first token, version) of each run of tokens of one version."""
    joined_as: ContextKey | None = None
    """The context it was last prefilled with."""
    cached: int = 0
    """Tokens whose keys and values are in the slot: all but the newest sampled one."""

    @classmethod
    def of(cls, request: GenerateRequest, tokenizer: Any | None, vocab_size: int, max_length: int) -> Row:
        """`ValueError` if the request can never be run."""
        refuse_invalid(request, tokenizer, vocab_size, max_length)
        params, partial = request.sampling, request.partial_ids
        limit = min(params.max_new_tokens, max_length - len(request.prompt_ids)) - len(partial)
        matcher = StopStringMatcher(tokenizer, params.stop_strings, partial) if params.stop_strings else None
        return cls(request, limit, frozenset(params.stop_token_ids), matcher)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def response(self) -> tuple[int, ...]:
        """All response tokens, those of earlier calls included."""
        return (*self.request.partial_ids, *self.tokens)

    @property
    def context(self) -> ContextKey:
        return self.request.prompt_ids + self.response, len(self.request.prompt_ids)

    def append(self, token: int, logprob: float, version: int) -> FinishReason | None:
        """Takes a sampled token; the reason if the row ends with it."""
        if not self.marks or self.marks[-1][1] != version:
            self.marks.append((len(self.tokens), version))
        self.tokens.append(token)
        self.logprobs.append(logprob)
        stopped = self.matcher is not None and self.matcher.push(token)
        if stopped or token in self.stop_ids:
            return "stop"
        return "length" if len(self.tokens) >= self.limit else None

    def result(self, reason: FinishReason, tokenizer: Any | None) -> GenerateResult:
        """`text` is of this call's tokens, without special ones, and ends where a stop string says; the tokens stay."""
        params, text = self.request.sampling, ""
        if tokenizer is not None:
            text = tokenizer.decode(self.tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            if reason == "stop":
                text = cut_at_stop(text, params.stop_strings, params.include_stop_str_in_output)
        stops = [start for start, _ in self.marks[1:]] + [len(self.tokens)]
        spans = [VersionSpan(start, stop, version) for (start, version), stop in zip(self.marks, stops, strict=False)]
        return GenerateResult(self.request_id, self.tokens, self.logprobs, spans, reason, text)


def refuse_invalid(request: GenerateRequest, tokenizer: Any | None, vocab_size: int, max_length: int) -> None:
    params, name = request.sampling, f"request {request.request_id!r}"
    ids = request.prompt_ids + request.partial_ids
    if not request.prompt_ids:
        raise ValueError(f"{name}: the prompt is empty")
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise ValueError(f"{name}: token ids must lie in [0, {vocab_size})")
    if len(request.prompt_ids) >= max_length:
        raise ValueError(f"{name}: a prompt of {len(request.prompt_ids)} tokens leaves no room in max_length={max_length}")
    if not (params.temperature >= 0 and 0 < params.top_p <= 1 and params.top_k >= 0 and params.max_new_tokens > 0):
        raise ValueError(f"{name}: sampling parameters out of range: {params}")
    if params.stop_strings and (tokenizer is None or not all(params.stop_strings)):
        raise ValueError(f"{name}: stop strings need a tokenizer and must not be empty")
