"""`vllm`: an `InferStrategy` around vLLM's asynchronous engine, tokens in and tokens out.

vLLM batches and samples; what a result means is defined here as for `hf_infer`: the log-probs (`vllm_worker`), stop strings, the
policy version of each token. A version changes only while the engine is paused, no call is on its way to it, and every request
knows from its salt which version's prefix cache it may read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from transformers import AutoConfig, AutoTokenizer

from roll.core.errors import Aborted, EngineClosed, EngineError
from roll.core.weights.adapter import AdapterSource
from roll.core.weights.bucket import Bucket, WeightManifest
from roll.core.workers.infer_interface import (
    ASLEEP,
    EngineStats,
    GenerateRequest,
    GenerateResult,
    OwnMetric,
    WeightUpdateMode,
)
from roll.strategies.infer.request_queue import RequestBounds, RequestQueue
from roll.strategies.infer.vllm.arguments import ROUTES, SEEING, engine_arguments
from roll.strategies.infer.vllm.images import EngineImages, Prompt, under
from roll.strategies.infer.vllm.own_metrics import OwnMetrics
from roll.strategies.infer.vllm.process import EngineFigures, engine_environment, engine_folder, start_engine
from roll.strategies.infer.vllm.weights import ReceivedAdapters, StagedBuckets, lora_request
from roll.transports.lending import LentBucket


@dataclass(slots=True, eq=False)
class _Call:
    """A request that the queue has let in, to its result."""

    request: GenerateRequest
    limit: int
    """Tokens this call may sample."""
    given_up: bool = False
    collector: Any = None
    """vLLM's collector of the outputs; None until the engine has the request."""


class VLLMInferStrategy:
    """Implements `InferStrategy`. All methods belong to one event loop.

    The constructor starts the engine on a Hugging Face folder (safetensors only), which takes half a minute. `max_length` bounds
    prompt + response tokens of a request. `devices`: torch devices as this process counts them, one for each of the engine's
    ranks; on CPUs ("cpu",). `threads`: CPU threads of the engine. `seed` serves the requests that bring none. `version`: the
    policy version of the folder's weights. `engine_args`: further arguments of vLLM's `AsyncEngineArgs`. `adapters`: weight
    updates are adapters, which the engine serves over their base. `images`: the folder of the run's. `head_dtype`: fp32, or None
    for `dtype`. `ValueError` if vLLM is missing, of an unknown version, or refuses an argument."""

    _adopting: asyncio.Task[None] | None = None
    _asleep = False
    _dropped: StagedBuckets | None = None
    """The weights that a sleep has taken, as long as none came in their place."""
    _ended: EngineError | None = None
    """The reason why the engine takes no more calls."""
    _routed: tuple[list[int], str] | None = None
    """The layers whose experts the engine records, and the type of their numbers."""

    def __init__(
        self,
        model_path: str,
        *,
        max_running_requests: int,
        max_length: int,
        dtype: str = "float32",
        devices: Sequence[str] = ("cpu",),
        threads: int | None = None,
        seed: int = 0,
        version: int = 0,
        engine_args: Mapping[str, Any] | None = None,
        adapters: AdapterSource | None = None,
        images: str | None = None,
        head_dtype: str | None = None,
    ) -> None:
        config: Any = AutoConfig.from_pretrained(model_path)
        model, on_cpu = config.get_text_config(), set(devices) == {"cpu"}
        arguments = engine_arguments(
            adapters.base if adapters else model_path,
            engine_args or {},
            model=model,
            max_running_requests=max_running_requests,
            cpu=on_cpu,
            lora_rank=adapters.rank if adapters else None,
            dtype=dtype,
            head_dtype=head_dtype,
            seed=seed,
            max_length=max_length,
        ) | (SEEING if images is not None else {})
        self._images, self._tokenizer = EngineImages(Path(model_path), images), AutoTokenizer.from_pretrained(model_path)
        self._queue = RequestQueue(RequestBounds(model.vocab_size, max_length, sees=images is not None), max_running_requests)
        self._adapters = ReceivedAdapters(adapters) if adapters else None
        self._received = self._adapters or StagedBuckets(Path(model_path), bool(config.tie_word_embeddings), self._images.shapes)
        self._whole = self._received if isinstance(self._received, StagedBuckets) else None
        self._frees_memory = bool(arguments.get("enable_sleep_mode")) and not on_cpu
        self._figures, self._folder, self._version = EngineFigures(), engine_folder(), version
        self._engine = start_engine(arguments, engine_environment(devices, threads, arguments, self._folder.path), self._figures)
        self._lora = lora_request(adapters.base) if adapters else None  # requests name it, to be computed with the adapters
        self._submitting, self._updating, self._calls = asyncio.Lock(), asyncio.Lock(), dict[str, _Call]()

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Cancelling the call aborts the request in the engine. Raises `EngineError` if the engine ended."""
        await self._ready()
        if request.sampling.with_routes and self._routed is None:
            raise ValueError(f"the engine records no experts: engine_args need {ROUTES}")
        if (limit := self._queue.bounds.tokens_left(request)) < 1:  # the request was aborted with its last token
            return GenerateResult.without_tokens(request, "length")
        try:
            async with self._queue.enter(request):
                return await self._respond(_Call(request, limit))
        except Aborted:
            return GenerateResult.without_tokens(request, "abort")

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        await self._ready()
        calls = [self._calls[name] for name in self._queue.abort(request_ids)]
        for call in calls:
            call.given_up = True
        if submitted := [call.request.request_id for call in calls if call.collector is not None]:
            await self._abort(submitted)

    async def receive_bucket(self, version: int, bucket: Bucket) -> None:
        """Runs beside the token steps, in a thread of the event loop's pool."""
        if self._ended is not None:
            raise self._ended
        await asyncio.to_thread(self._received.receive, version, bucket)

    async def receive_lent(self, version: int, bucket: LentBucket) -> None:
        await self._ready()
        if self._whole is None or self._frees_memory:
            raise ValueError("adapters, and engines that sleep, are read from files")
        async with self._engine_errors():
            if refusal := "".join(await self._engine.collective_rpc("keep_lent", args=(version, bucket.lent.plain()))):
                raise ValueError(refusal)
        self._whole.receive_lent(version, bucket)

    async def activate_weights(self, manifest: WeightManifest, mode: WeightUpdateMode) -> float:
        """Returns the pause: from the answer that no token step is under way to the moment the next could begin. An error
        other than a refusal leaves the engine between two versions and ends it. Cancelling the call does not end the update."""
        await self._ready()
        if mode not in get_args(WeightUpdateMode):
            raise ValueError(f"unknown weight update mode {mode!r}")
        if self._asleep:
            raise ValueError(ASLEEP)
        return await asyncio.shield(asyncio.create_task(self._activate(manifest, mode)))

    async def _activate(self, manifest: WeightManifest, mode: WeightUpdateMode) -> float:
        async with self._updating:
            files = await asyncio.to_thread(self._received.take, manifest)
            self._queue.hold()
            try:
                async with self._submitting:  # no call is on its way now
                    pause = await self._replace_weights(files, manifest.version, mode)
            except Exception as error:  # boundary: vLLM may raise anything, and is then between two versions
                self._end(EngineError(f"the update to version {manifest.version} failed in the vLLM engine: {error}"))
                raise self._ended or error from error
            finally:
                self._queue.release()
            if self._whole is not None and self._frees_memory:
                self._whole.keep()
            else:
                self._received.forget()
        return pause

    async def sleep(self) -> None:
        """Frees the weights' and the KV cache's memory if the engine has `enable_sleep_mode`, which on CPUs there is not.
        Requests that come now wait for `wake` in either case. Whole weights are dropped: mostly new ones follow; else they are
        loaded again, from files, when a request needs them."""
        await self._ready()
        if self._asleep:
            return
        self._queue.hold()
        await self._queue.empty()
        self._asleep = True
        if self._frees_memory:
            async with self._engine_errors():
                await self._engine.sleep(level=1 if self._whole is None else 2)
            self._dropped = self._whole

    async def wake(self) -> None:
        await self._ready()
        if not self._asleep:
            return
        if self._frees_memory:
            async with self._engine_errors():
                await self._engine.wake_up()
        self._asleep = False
        self._queue.release()

    async def stats(self) -> EngineStats:
        await self._ready()
        counted = EngineStats(
            version=self._version,
            generated_tokens=self._figures.generated_tokens,
            prefill_tokens=self._figures.prefill_tokens,
            cache_use=self._figures.cache_use,
        )
        return self._queue.stats(counted)

    async def own_metrics(self) -> list[OwnMetric]:
        await self._ready()
        self._figures.own = self._figures.own or OwnMetrics(self._engine.vllm_config)
        return self._figures.own.read()

    async def close(self) -> None:
        """Ends the engine's processes; pending calls then raise `EngineClosed`. May be repeated."""
        if not isinstance(self._ended, EngineClosed):
            self._end(EngineClosed("the inference engine was closed"))
            if self._engine.output_handler is not None:
                self._engine.output_handler.cancel()  # vLLM would report the end as a failure
            await asyncio.to_thread(self._engine.shutdown)
            self._engine = None  # while its own clean-up still finds the modules it needs
            self._received.close()
            self._folder.remove()

    async def _respond(self, call: _Call) -> GenerateResult:
        name, preemptions = call.request.request_id, self._figures.preemptions
        self._calls[name] = call
        try:
            prompt = await self._images.prompt(call.request)
            async with self._submitting:  # the version cannot change meanwhile
                await self._submit(call, prompt)
            if call.given_up:  # while it was on its way to the engine
                await self._abort([name])
            result = await self._collect(call)
        except asyncio.CancelledError:
            if call.collector is not None and self._ended is None:
                await self._abort([name])
            raise
        finally:
            del self._calls[name]
        result.preempted = self._figures.preemptions > preemptions
        return result

    async def _submit(self, call: _Call, prompt: Prompt) -> None:
        """Returns when the engine has the request."""
        from roll.strategies.infer.vllm.requests import vllm_sampling

        if self._ended is not None:
            raise self._ended
        request = call.request
        if call.given_up:
            raise Aborted(request.request_id)
        if self._dropped is not None:
            await self._restore(self._dropped.served)
        salted, sampling = under(prompt, self._version), vllm_sampling(request, call.limit)
        more = {"priority": request.priority, "lora_request": self._lora}
        async with self._engine_errors():
            call.collector = await self._engine.add_request(request.request_id, salted, sampling, **more)

    async def _collect(self, call: _Call) -> GenerateResult:
        from roll.strategies.infer.vllm.requests import SampledResponse

        response = SampledResponse(call.request, self._tokenizer, self._routed)
        while True:
            async with self._engine_errors():
                output = await call.collector.get()
            running = not response.stopped
            if (result := response.take(output)) is not None:
                return result
            if running and response.stopped:
                await self._abort([call.request.request_id])

    async def _abort(self, request_ids: Sequence[str]) -> None:
        async with self._engine_errors():
            await self._engine.abort(list(request_ids))

    async def _replace_weights(self, files: list[str], version: int, mode: WeightUpdateMode) -> float:
        engine = self._engine
        # Not engine.pause_generation(), which sleeps 20 ms on top.
        await engine.engine_core.pause_scheduler_async(mode="wait" if mode == "drain" else "keep", clear_cache=False)
        began = time.perf_counter()
        forgotten = [] if mode == "in_flight" else [engine.reset_prefix_cache(reset_running_requests=True)]
        # The engine is paused, so their order is free: one round trip instead of three.
        done = await asyncio.gather(self._load(files), engine.update_weight_version(str(version)), *forgotten)
        if False in done:
            raise RuntimeError("the prefix cache could not be cleared")
        self._version = version
        await engine.resume_generation()
        return time.perf_counter() - began

    async def _load(self, files: list[str]) -> None:
        if self._adapters is None:
            await self._engine.collective_rpc("load_policy", args=(files, self._whole.lent if self._whole else []))
            if self._images.shown:  # the workers have forgotten the features of images, and the scheduler counts on them
                await self._engine.reset_encoder_cache()
        elif not await self._engine.add_lora(lora_request(files[0], replace=True)):
            raise RuntimeError("vLLM did not load the adapters")
        self._dropped = None

    async def _restore(self, files: list[str]) -> None:
        try:
            async with self._engine_errors():
                await self._load(files)
        except Exception as error:  # boundary: vLLM may raise anything, and has no weights then
            self._end(EngineError(f"the weights of version {self._version} could not be loaded again after a sleep: {error}"))
            raise self._ended or error from error

    async def _ready(self) -> None:
        if self._ended is not None:
            raise self._ended
        self._adopting = self._adopting or asyncio.create_task(self._adopt())
        await asyncio.shield(self._adopting)

    async def _adopt(self) -> None:
        """Prepares the engine for its first call, which needs a running event loop."""
        try:
            async with self._engine_errors():
                self._routed, *_ = await self._engine.collective_rpc("adopt_policy")
                if self._adapters is not None:
                    await self._load([str(self._adapters.start)])
                await self._engine.update_weight_version(str(self._version))
        except EngineError as error:
            self._end(error)
            raise

    @asynccontextmanager
    async def _engine_errors(self) -> AsyncIterator[None]:
        """Turns vLLM's errors, which cannot be read where vLLM is not installed, into `ValueError` (a refusal) or
        `EngineError`."""
        try:
            yield
        except EngineError:
            raise
        except ValueError as refusal:
            raise ValueError(f"vLLM refuses the request: {refusal}") from None
        except Exception as error:  # boundary: vLLM may raise anything
            if self._ended is None and self._engine.errored:
                self._end(EngineError(f"the vLLM engine died: {error or type(error).__name__} (its own messages are above)"))
            raise self._ended or EngineError(f"{type(error).__name__} in the vLLM engine: {error}") from error

    def _end(self, why: EngineError) -> None:
        """Hands the reason to all who wait for the engine, so no call ever hangs."""
        self._ended = why
        self._queue.end(why)
        for call in self._calls.values():
            if call.collector is not None:
                call.collector.put(why)
