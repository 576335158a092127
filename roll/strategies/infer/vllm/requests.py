"""Requests and results in vLLM's types."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from vllm import SamplingParams as VLLMSamplingParams
from vllm import envs
from vllm.sampling_params import RequestOutputKind

from roll.core.data.extras import Extras
from roll.core.data.kept_tokens import Ints
from roll.core.data.sample import FinishReason, VersionSpan
from roll.core.data.seeding import derive_seed
from roll.core.errors import EngineError
from roll.core.workers.infer_interface import GenerateRequest, GenerateResult
from roll.core.workers.response_text import Tokenizer, response_text
from roll.strategies.infer.recorded import cut, first_unrouted, kept_tokens, routes
from roll.strategies.infer.stop_strings import StopStringMatcher

KEPT = "kept_sets"
"""The extra argument of a request that asks for the set that each token was drawn from."""


def vllm_sampling(request: GenerateRequest, limit: int) -> object:
    """vLLM's sampling parameters for `limit` more tokens. With stop strings the outputs come token by token, and are searched
    here."""
    ours = request.sampling
    # A seed is a random generator for each row, without the fast sampler. It is worth that only where rounding, too, is repeated.
    seed = ours.seed if envs.VLLM_BATCH_INVARIANT else None
    if seed is not None and request.partial_ids:
        # The numbers of the tokens before would be drawn once more.
        seed = derive_seed(seed, len(request.partial_ids))
    return VLLMSamplingParams(
        temperature=ours.temperature,
        top_p=ours.top_p,
        top_k=ours.top_k,
        max_tokens=limit,
        stop_token_ids=list(ours.stop_token_ids),
        ignore_eos=True,  # the stop tokens are those of the request, nothing the model folder says
        seed=seed,
        logprobs=0,  # the sampled token's alone
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA if ours.stop_strings else RequestOutputKind.FINAL_ONLY,
        extra_args={KEPT: True} if cut(ours) else None,
        routed_experts_prompt_start=first_unrouted(request),
        skip_clone=True,
    )


class SampledResponse:
    """Tokens that vLLM has sampled for a request so far. Stop strings are found here, so that they mean the same in every engine,
    also one that began before an interruption."""

    def __init__(self, request: GenerateRequest, tokenizer: Tokenizer, routed: tuple[list[int], str] | None = None) -> None:
        """`routed`: the layers whose experts the engine records, and the type of their numbers."""
        self._request = request
        self._tokenizer = tokenizer
        self._routed = routed if request.sampling.with_routes else None
        self._matcher: StopStringMatcher | None = None
        if request.sampling.stop_strings:
            self._matcher = StopStringMatcher(tokenizer, request.sampling.stop_strings, request.partial_ids)
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._kept: list[Ints] = []
        self.stopped = False
        """A stop string has ended it; what vLLM samples beyond is ignored."""

    def take(self, output: Any) -> GenerateResult | None:
        """A `RequestOutput`; the result with the last one. `FloatingPointError` if a log-prob is not finite."""
        part = output.outputs[0]
        if part.token_ids and not self.stopped:
            if part.sampling_mask is not None and cut(self._request.sampling):
                self._kept += [np.array(ids, np.int32) for ids in part.sampling_mask.token_ids]
            for token, logprob in zip(part.token_ids, part.logprobs.logprobs, strict=True):
                self._tokens.append(token)
                self._logprobs.append(logprob)
                if self._matcher is not None and self._matcher.push(token):
                    self.stopped = True
                    break
        if not output.finished:
            return None
        reason: FinishReason = "stop" if self.stopped else _finish_reason(part.finish_reason)
        length = len(self._tokens)
        spans = [VersionSpan(v.start, min(v.end, length), int(v.version)) for v in part.weight_versions or [] if v.start < length]
        tokens, request = len(self._tokens), self._request
        kept = kept_tokens("vLLM", request.sampling, self._kept, tokens)
        return self._result(spans, reason, Extras(kept, routes("vLLM", request, self._routed, part.routed_experts, tokens)))

    def _result(self, spans: list[VersionSpan], reason: FinishReason, extras: Extras) -> GenerateResult:
        if not math.isfinite(sum(self._logprobs)):
            versions = ", ".join(str(span.version) for span in spans)
            raise FloatingPointError(f"the logits are not finite under the weights of version {versions}")
        text = response_text(self._tokenizer, self._tokens, self._request.sampling, reason)
        return GenerateResult(self._request.request_id, self._tokens, self._logprobs, spans, reason, text, extras=extras)


def _finish_reason(reason: str | None) -> FinishReason:
    if reason == "stop":
        return "stop"
    if reason == "length":
        return "length"
    if reason == "abort":
        return "abort"
    raise EngineError(f"the vLLM engine ended a request with reason {reason!r}")
