"""Records of another project's engine on a request's tokens: kept sets, and experts. Its reports become a result's here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roll.core.data.kept_tokens import Ints, KeptTokens
from roll.core.data.routes import Routes
from roll.core.errors import EngineError
from roll.core.workers.infer_interface import GenerateRequest, SamplingParams


def cut(sampling: SamplingParams) -> bool:
    """True if the request asks for kept sets, and has other ones than the whole vocabulary."""
    return sampling.with_kept and sampling.temperature > 0 and (sampling.top_p < 1 or sampling.top_k > 0)


def first_unrouted(request: GenerateRequest) -> int:
    """The first token whose experts no call before has reported; a call reports those of all its tokens but the last."""
    return len(request.prompt_ids) + len(request.partial_ids) - 1 if request.partial_ids else 0


def kept_tokens(engine: str, sampling: SamplingParams, sets: Sequence[Ints], tokens: int) -> KeptTokens | None:
    """`sets`: of at least this call's `tokens` tokens. Raises `EngineError` if there are fewer."""
    if not sampling.with_kept:
        return None
    if not cut(sampling):
        return KeptTokens.whole(tokens)
    if len(sets) < tokens:
        raise EngineError(f"the {engine} engine reported {len(sets)} kept sets of {tokens} tokens")
    return KeptTokens.of(sets[:tokens])


def routes(
    engine: str, request: GenerateRequest, routed: tuple[list[int], str] | None, experts: Any, tokens: int
) -> Routes | None:
    """`routed`: the layers that have experts, and the type of their numbers; None if they were not asked for. `experts`: [tokens,
    all layers, experts a token], of tokens from `first_unrouted` on. Raises `EngineError` if there are fewer than of `tokens`."""
    if routed is None or not tokens:
        return None
    layers, dtype = routed
    needed = len(request.prompt_ids) + len(request.partial_ids) + tokens - 1 - first_unrouted(request)
    if experts is None or len(experts) < needed:
        found = 0 if experts is None else len(experts)
        raise EngineError(f"the {engine} engine reported the experts of {found} of {needed} tokens")
    return Routes(experts[:needed, layers].astype(dtype))
