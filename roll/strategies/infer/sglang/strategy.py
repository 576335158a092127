"""`sglang`: an `InferStrategy` that speaks to an SGLang server of its own.

SGLang and vLLM cannot share an environment, so the server runs in another interpreter (`strategy_config.python`). Tokens go in
and come out; log-probs are those of `log_softmax(logits / temperature)` before top_p and top_k, and the server itself stamps each
token with the version of its weights. New weights are staged as files in memory while it generates, and loaded while it pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from transformers import AutoConfig, AutoTokenizer

from roll.core.data.sample import FinishReason, VersionSpan
from roll.core.errors import Aborted
from roll.core.weights.bucket import Bucket, WeightManifest
from roll.core.workers.infer_interface import ASLEEP, EngineStats, GenerateRequest, GenerateResult, WeightUpdateMode
from roll.core.workers.response_text import Tokenizer, response_text
from roll.strategies.infer.request_queue import RequestBounds, RequestQueue
from roll.strategies.infer.sglang.arguments import INSTALL, STARTUP_TIMEOUT_S, interpreter, server_arguments
from roll.strategies.infer.sglang.server import SGLangServer
from roll.transports.staged import StagedWeights

# What running requests go through. retract: back to the queue with their tokens, prefilled again; in_place: their KV cache stays.
_PAUSE: dict[WeightUpdateMode, str] = {"interrupt": "retract", "in_flight": "in_place"}


class SGLangInferStrategy:
    """Implements `InferStrategy`. Raises `EngineError` once the server is gone.

    `max_length` bounds prompt + response tokens of a request. `devices`: torch devices as this process counts them, one for each
    rank of `tensor_parallel_size`. `version`: the policy version of the folder's weights. `engine_args`: `python`, the
    interpreter that has SGLang, and further fields of SGLang's `ServerArgs`.

    A request's seed is sent with `enable_deterministic_inference` alone, without which SGLang ignores it."""

    _asleep = False

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
    ) -> None:
        given = dict(engine_args or {})
        python, timeout_s = interpreter(given.pop("python", None)), given.pop("startup_timeout_s", STARTUP_TIMEOUT_S)
        if python is None:
            raise ValueError(f"there is no SGLang on this machine: {INSTALL}")
        arguments = server_arguments(
            model_path,
            given,
            devices=devices,
            dtype=dtype,
            seed=seed,
            max_length=max_length,
            max_running_requests=max_running_requests,
            version=version,
        )
        self._heeds_seeds = bool(given.get("enable_deterministic_inference"))
        self._model_path = Path(model_path)
        vocab_size: int = AutoConfig.from_pretrained(model_path).get_text_config().vocab_size
        self._queue = RequestQueue(RequestBounds(vocab_size, max_length), max_running_requests)
        self._tokenizer: Tokenizer = AutoTokenizer.from_pretrained(model_path)
        self._server = SGLangServer(python, arguments, devices, threads, timeout_s)
        self._client = self._server.client()
        self._staged = StagedWeights()
        self._stats = EngineStats(version=version)

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Cancelling the call aborts the request in the engine."""
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
        await asyncio.to_thread(self._staged.receive, version, bucket)

    async def activate_weights(self, manifest: WeightManifest, mode: WeightUpdateMode) -> float:
        """The pause is measured from the request to pause (`drain`: from the end of the last running request) until the server
        goes on: a little more than its token steps really stood still."""
        if self._asleep:
            raise ValueError(ASLEEP)
        folder = self._staged.complete(manifest)
        for file in self._model_path.glob("*.json"):
            if not file.name.endswith(".index.json"):
                shutil.copy(file, folder)
        self._queue.hold()
        try:
            if mode == "drain":
                await self._queue.empty()
            began = time.monotonic()
            if mode != "drain":
                await self._post("pause_generation", {"mode": _PAUSE[mode]})
            await self._post(
                "update_weights_from_disk",
                # Flushing with the cache of running requests in use is refused; a version of its own keys the cache then.
                {
                    "model_path": str(folder),
                    "load_format": "safetensors",  # otherwise the load format of the start counts, which may be dummy
                    "weight_version": str(manifest.version),
                    "flush_cache": mode != "in_flight",
                },
            )
            if mode != "drain":
                await self._post("continue_generation", {})
            pause = time.monotonic() - began
            self._stats.version = manifest.version
        finally:
            self._queue.release()
        self._staged.discard()
        return pause

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
        self._staged.close()

    def _body(self, request: GenerateRequest, limit: int) -> dict[str, Any]:
        sampling = request.sampling
        return {
            "rid": request.request_id,
            "input_ids": [*request.prompt_ids, *request.partial_ids],
            "return_logprob": True,
            # The version in the key keeps requests away from cached prefixes of other weights.
            "extra_key": str(self._stats.version),
            "sampling_params": {
                "max_new_tokens": limit,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k or -1,
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
        return GenerateResult(request.request_id, tokens, logprobs, spans, reason, text, preempted)

    async def _post(self, route: str, body: dict[str, Any]) -> Any:
        """The answer's JSON. SGLang reports many a refusal with `success: false` only."""
        try:
            response = await self._client.post(f"/{route}", json=body)
        except httpx.TransportError as error:
            if not self._server.alive:
                raise self._server.failure("is gone") from error
            raise
        answer: Any = None
        with contextlib.suppress(ValueError):
            answer = response.json()
        refused = isinstance(answer, dict) and answer.get("success") is False
        if refused or response.status_code != 200:
            raise RuntimeError(f"SGLang refused /{route} ({response.status_code}): {response.text[:500]}")
        return answer
