"""`sglang`: an `InferStrategy` that speaks to an SGLang server of its own.

SGLang and vLLM cannot share an environment, so the server runs in another interpreter (`strategy_config.python`). Tokens go in
and come out; log-probs are those of `log_softmax(logits / temperature)` before top_p and top_k, and the server itself stamps each
token with the version of its weights. New weights are kept where it can map them while it generates, and loaded while it pauses.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoConfig, AutoTokenizer

from roll.core.data.extras import Extras
from roll.core.data.sample import FinishReason, VersionSpan
from roll.core.errors import Aborted, EngineError
from roll.core.weights.bucket import Bucket, WeightManifest
from roll.core.workers.infer_interface import ASLEEP, EngineStats, GenerateRequest, GenerateResult, WeightUpdateMode
from roll.core.workers.response_text import Tokenizer, response_text
from roll.strategies.infer.recorded import cut, first_unrouted, kept_tokens, routes
from roll.strategies.infer.request_queue import RequestBounds, RequestQueue
from roll.strategies.infer.sglang.arguments import LOADER, ROUTES, server_arguments
from roll.strategies.infer.sglang.server import start_server
from roll.strategies.infer.sglang.weights import ServerWeights, as_tensors
from roll.strategies.routers import routed_layers
from roll.transports.lending import LentBucket

# What running requests go through. retract: back to the queue with their tokens, prefilled again; in_place: their KV cache stays.
_PAUSE: dict[WeightUpdateMode, str] = {"interrupt": "retract", "in_flight": "in_place"}


class SGLangInferStrategy:
    """Implements `InferStrategy`. Raises `EngineError` once the server is gone.

    `max_length` bounds prompt + response tokens of a request. `devices`: torch devices as this process counts them, one for each
    rank of `tensor_parallel_size`. `version`: the policy version of the folder's weights. `engine_args`: `python`, the
    interpreter that has SGLang, and further fields of SGLang's `ServerArgs`. `head_dtype`: fp32, or None for `dtype`.

    With `enable_return_routed_experts` it reports experts. `interrupt` then ends what runs, with reason `abort`: a request that
    was prefilled again would have the experts of that prefill for what older weights sampled.

    A request's seed is sent with `enable_deterministic_inference` alone, without which SGLang ignores it."""

    _asleep = False
    _routed: tuple[list[int], str] | None = None
    """The layers whose experts the server records, and the type of their numbers."""

    def __init__(
        self,
        model_path: str,
        *,
        max_running_requests: int,
        max_length: int,
        dtype: str = "float32",
        devices: Sequence[str] = ("cpu",),
        threads: int = 1,
        seed: int = 0,
        version: int = 0,
        engine_args: Mapping[str, Any] | None = None,
        head_dtype: str | None = None,
    ) -> None:
        model: Any = AutoConfig.from_pretrained(model_path).get_text_config()
        given = dict(engine_args or {})
        arguments = server_arguments(
            model_path,
            given,
            devices=devices,
            dtype=dtype,
            seed=seed,
            max_length=max_length,
            max_running_requests=max_running_requests,
            version=version,
            most_kept=model.vocab_size,
            head_dtype=head_dtype,
        )
        self._heeds_seeds = bool(given.get("enable_deterministic_inference"))
        self._model_path = Path(model_path)
        if arguments.get(ROUTES):
            self._routed = routed_layers(self._model_path)
            self._recorded = (model.num_hidden_layers, model.num_experts_per_tok)
        self._queue = RequestQueue(RequestBounds(model.vocab_size, max_length), max_running_requests)
        self._tokenizer: Tokenizer = AutoTokenizer.from_pretrained(model_path)
        self._server = start_server(given, arguments, devices, threads)
        self._client = self._server.client()
        self._ranks, self._received = len(devices), ServerWeights(devices)
        self._stats = EngineStats(version=version)

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Cancelling the call aborts the request in the engine."""
        if request.sampling.with_routes and self._routed is None:
            raise ValueError(f"the engine records no experts: engine_args need {ROUTES}")
        limit = self._queue.bounds.tokens_left(request)
        if limit < 1:  # the request was aborted with its last token
            return GenerateResult.without_tokens(request, "length")
        try:
            async with self._queue.enter(request):
                answer = await self._answer(request, limit)
        except Aborted:
            return GenerateResult.without_tokens(request, "abort")
        return self._result(request, answer)

    async def _answer(self, request: GenerateRequest, limit: int) -> dict[str, Any]:
        while True:
            body = self._body(request, limit)
            try:
                answer: dict[str, Any] = await self._post("generate", body)
            except asyncio.CancelledError:
                await asyncio.shield(self._post("abort_request", {"rid": request.request_id}))
                raise
            meta = answer["meta_info"]
            versions = [str(span["version"]) for span in meta.get("weight_versions") or []]
            if versions[:1] in ([], [body["extra_key"]]) or not meta.get("cached_tokens", 0):
                return answer
            # An update overtook it on its way to the server, where it then read its prompt from the cache of the weights before:
            # its log-probs are those of no version.
            if meta["finish_reason"]["type"] == "abort":
                raise Aborted(request.request_id)

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        await asyncio.gather(*(self._post("abort_request", {"rid": name}) for name in self._queue.abort(request_ids)))

    async def receive_bucket(self, version: int, bucket: Bucket) -> None:
        await asyncio.to_thread(self._received.receive, version, bucket)

    async def receive_lent(self, version: int, bucket: LentBucket) -> None:
        await asyncio.to_thread(self._received.receive_lent, version, bucket)

    async def activate_weights(self, manifest: WeightManifest, mode: WeightUpdateMode) -> float:
        """The pause is measured from the request to pause (`drain`: from the end of the last running request) until the server
        goes on: a little more than its token steps really stood still. An error other than a refusal leaves the server between
        two versions and ends it. Cancelling the call does not end the update."""
        if self._asleep:
            raise ValueError(ASLEEP)
        return await asyncio.shield(asyncio.create_task(self._activate(manifest, mode)))

    async def _activate(self, manifest: WeightManifest, mode: WeightUpdateMode) -> float:
        with self._received.taken(manifest) as said:
            self._queue.hold()
            try:
                if mode == "drain":
                    await self._queue.empty()
                began = time.monotonic()
                await self._replace_weights(as_tensors(said), manifest.version, mode)
                self._stats.version = manifest.version
                return time.monotonic() - began
            finally:
                self._queue.release()

    async def _replace_weights(self, said: str, version: int, mode: WeightUpdateMode) -> None:
        recomputes = mode == "interrupt" and self._routed is not None
        try:
            if mode != "drain":
                await self._post("pause_generation", {"mode": "abort" if recomputes else _PAUSE[mode]})
            await self._post("begin_weight_update", {})
            await self._post(
                "update_weights_from_tensor",
                {
                    "serialized_named_tensors": [said] * self._ranks,
                    "load_format": LOADER,
                    "weight_version": str(version),
                    # Flushing with the cache of running requests in use is refused; a version of its own keys the cache then.
                    "flush_cache": mode != "in_flight",
                },
            )
            await self._post("end_weight_update", {})
            if mode != "drain":
                await self._post("continue_generation", {})
        except EngineError:
            raise
        except Exception as error:  # boundary: the server may do anything
            raise await asyncio.to_thread(self._server.give_up, f"did not load version {version} ({error})") from error

    async def sleep(self) -> None:
        if self._asleep:
            return
        self._asleep = True
        self._queue.hold()
        await self._queue.empty()  # the server ends when it is to release what is in use
        await self._post("release_memory_occupation", {})

    async def wake(self) -> None:
        if not self._asleep:
            return
        await self._post("resume_memory_occupation", {})
        self._asleep = False
        self._queue.release()

    async def stats(self) -> EngineStats:
        if not self._server.alive:
            raise self._server.failure("is gone")
        return self._queue.stats(self._stats)

    async def close(self) -> None:
        await self._client.aclose()
        await asyncio.to_thread(self._server.close)
        self._received.close()

    def _body(self, request: GenerateRequest, limit: int) -> dict[str, Any]:
        sampling, most = request.sampling, self._queue.bounds.vocab_size
        # A mask is said of a finite top_k alone.
        top_k = min(sampling.top_k or most, most) if cut(sampling) else sampling.top_k or -1
        return {
            "rid": request.request_id,
            "input_ids": [*request.prompt_ids, *request.partial_ids],
            "return_logprob": True,
            "return_sampling_mask": cut(sampling),
            "return_routed_experts": sampling.with_routes,
            "routed_experts_start_len": first_unrouted(request),
            # The version in the key keeps requests away from cached prefixes of other weights.
            "extra_key": str(self._stats.version),
            "sampling_params": {
                "max_new_tokens": limit,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": top_k,
                "stop": list(sampling.stop_strings),
                "stop_token_ids": list(sampling.stop_token_ids),
                "skip_special_tokens": False,
                **({"sampling_seed": sampling.seed % 2**31} if self._heeds_seeds and sampling.seed is not None else {}),
            },
        }

    def _result(self, request: GenerateRequest, answer: dict[str, Any]) -> GenerateResult:
        meta = answer["meta_info"]
        tokens: list[int] = answer.get("output_ids") or []
        logprobs = [float(entry[0]) for entry in meta.get("output_token_logprobs") or []]
        if cut(request.sampling):
            logprobs = meta.get("output_token_sampling_logprobs") or []
        if len(logprobs) != len(tokens):
            raise RuntimeError(f"SGLang returned {len(tokens)} tokens and {len(logprobs)} log-probs for {request.request_id!r}")
        spans = [
            VersionSpan(span["start"], min(span["end"], len(tokens)), int(span["version"]))
            for span in meta.get("weight_versions") or []
            if span["start"] < min(span["end"], len(tokens))
        ]
        reason: FinishReason = meta["finish_reason"]["type"]
        self._stats.generated_tokens += len(tokens)
        # The server does not report it for a request that was aborted while it waited (a retracted request waits again).
        self._stats.prefill_tokens += meta.get("prompt_tokens", 0) - meta.get("cached_tokens", 0)
        text = response_text(self._tokenizer, tokens, request.sampling, reason)
        preempted = meta.get("num_retractions", 0) > 0
        extras = self._extras(request, meta, len(tokens))
        return GenerateResult(request.request_id, tokens, logprobs, spans, reason, text, preempted, extras)

    def _extras(self, request: GenerateRequest, meta: dict[str, Any], tokens: int) -> Extras:
        masks = meta.get("output_token_sampling_mask") or []
        # The whole vocabulary is no set.
        sets = [np.array(ids if len(ids) < self._queue.bounds.vocab_size else [], np.int32) for ids in masks]
        kept, experts = kept_tokens("SGLang", request.sampling, sets, tokens), None
        if (said := meta.get("routed_experts")) is not None:
            experts = np.frombuffer(base64.b64decode(said), np.int32).reshape(-1, *self._recorded)
        return Extras(kept, routes("SGLang", request, self._routed if request.sampling.with_routes else None, experts, tokens))

    async def _post(self, route: str, body: dict[str, Any]) -> Any:
        return await self._server.post(self._client, route, body)
