"""The interface of every inference engine to the rollout side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol, TypeAlias, runtime_checkable

from roll.core.configs.arguments import GeneratingArguments
from roll.core.configs.base import WeightUpdateMode as WeightUpdateMode  # re-exported as part of this interface
from roll.core.configs.plain import JsonObject
from roll.core.data.extras import NOTHING, Extras
from roll.core.data.sample import LOGPROBS, TOKENS, FinishReason, VersionSpan, packed
from roll.core.weights.bucket import Bucket, WeightManifest

NO_VERSION = -1
"""The version of an engine with random weights, which must not serve yet."""


ASLEEP = "the engine sleeps: another role has the memory that weights need"
"""The reason for refusing weights."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    temperature: float = 1.0
    """0 means greedy; behaviour log-probs are then those of temperature 1."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means no limit."""
    max_new_tokens: int = 64
    stop_token_ids: tuple[int, ...] = ()
    """End-of-sequence and other stop tokens; the stop token is part of the response."""
    stop_strings: tuple[str, ...] = ()
    include_stop_str_in_output: bool = True
    with_kept: bool = False
    """Requests the tokens that top_p and top_k kept; log-probs are then taken over these."""
    with_routes: bool = False
    """Requests the experts that each token was routed to."""
    seed: int | None = None
    """With a seed the response is a function of weights, prompt and seed alone, however requests are batched or interrupted.
    (vllm, sglang: only in their batch-invariant modes, `VLLM_BATCH_INVARIANT=1` and `enable_deterministic_inference`; otherwise
    it is left out, because it would cost speed. A request resumed from `partial_ids` draws other numbers there.)"""

    def __reduce__(self) -> tuple[object, ...]:
        """Speeds up pickling: frozen dataclasses with slots look up every field, and there are many instances."""
        return SamplingParams, _PARAMS(self)


_PARAMS = attrgetter(*SamplingParams.__slots__)


def sampling_params(
    args: GeneratingArguments, max_new_tokens: int, ends: Sequence[int], with_kept: bool = False, with_routes: bool = False
) -> SamplingParams:
    """Makes the parameters. `ends`: end tokens named by the model's folder (`folder_tokens`)."""
    return SamplingParams(
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        max_new_tokens=max_new_tokens,
        stop_token_ids=tuple(ends) if args.end_ids is None else args.end_ids,
        stop_strings=tuple(args.stop_strings),
        include_stop_str_in_output=args.include_stop_str_in_output,
        with_kept=with_kept,
        with_routes=with_routes,
    )


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    partial_ids: tuple[int, ...] = ()
    """Response tokens sampled before, to resume an aborted request; they count towards `max_new_tokens`."""
    priority: int = 1
    """Lower is admitted first: 0 validation, 1 training."""

    def __reduce__(self) -> tuple[object, ...]:
        return GenerateRequest, _REQUEST(self)


_REQUEST = attrgetter(*GenerateRequest.__slots__)


@dataclass(slots=True)
class GenerateResult:
    """The tokens sampled by this call only (without `partial_ids`). Spans count from the first of *these* tokens."""

    request_id: str
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    versions: list[VersionSpan]
    finish_reason: FinishReason
    text: str = ""
    preempted: bool = False
    """The engine ran out of KV cache meanwhile and recomputed that of some request: it had too many tokens at once."""
    extras: Extras = NOTHING
    """Data of this call's tokens, if requested. Routes also cover earlier tokens, except those that the previous call computed
    for the same response."""

    def __post_init__(self) -> None:
        self.token_ids, self.logprobs = packed(self.token_ids, TOKENS), packed(self.logprobs, LOGPROBS)

    @classmethod
    def without_tokens(cls, request: GenerateRequest, reason: FinishReason) -> GenerateResult:
        return cls(request.request_id, [], [], [], reason)


@dataclass(slots=True)
class EngineStats:
    version: int = NO_VERSION
    running: int = 0
    queued: int = 0
    free_slots: int = 0
    generated_tokens: int = 0
    prefill_tokens: int = 0
    busy_s: float = 0.0
    """Seconds with at least one request running."""
    cache_use: float | None = None
    """Share of the KV cache that is in use; None if the engine does not say."""


class InferStrategy(Protocol):
    """An engine in its worker. Methods are coroutines; many calls of `generate` may be open."""

    async def generate(self, request: GenerateRequest) -> GenerateResult: ...

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        """Ends the named requests (None: all, running and queued); their `generate` returns its tokens so far, reason `abort`."""

    async def receive_bucket(self, version: int, bucket: Bucket) -> None:
        """Verifies a bucket and keeps it aside (shadow buffer) while generation goes on."""

    async def activate_weights(self, manifest: WeightManifest, mode: WeightUpdateMode) -> float:
        """Activates the received weights between two token steps. Returns the pause in seconds, from the end of the step before
        to the moment the next could begin.

        Raises `ValueError` if the received buckets are not those of the manifest, and while the engine sleeps. `interrupt`:
        running requests keep their tokens and are prefilled again under the new weights; `in_flight`: they keep their KV cache;
        `drain`: the update waits until they have ended, and none begins meanwhile."""

    async def sleep(self) -> None:
        """Frees the device's memory when the running requests have ended, as far as the engine can reallocate it (`hf_infer`
        keeps the weights). New requests wait for `wake`."""

    async def wake(self) -> None: ...

    async def stats(self) -> EngineStats: ...

    async def close(self) -> None: ...


OwnMetric: TypeAlias = JsonObject
"""A metric of the engine's package: name, kind, help, and samples of name, labels and value, as Prometheus has them."""


@runtime_checkable
class MeasuringStrategy(InferStrategy, Protocol):
    async def own_metrics(self) -> list[OwnMetric]: ...
