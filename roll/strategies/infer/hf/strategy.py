"""`hf_infer`: the embedded inference engine, an `InferStrategy` around a `SlotEngine` in a thread of its own.

The thread runs the token steps and, between two of them, the actions that coroutines posted to it; it is the only one that
touches the engine. Buckets alone are verified and copied elsewhere, while tokens are made. An action's `ValueError` is the
caller's mistake and goes back to the caller; anything else ends the engine, and every pending and later call raises it.

No other thread computes with several threads of torch: each thread that does so keeps a pool of its own, and with more pooled
threads than cores libgomp's go to sleep between two operations instead of waiting for the next.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from roll.core.configs.arguments import KV_BLOCK
from roll.core.errors import EngineClosed
from roll.core.weights.adapter import AdapterSource
from roll.core.weights.bucket import Bucket, WeightManifest
from roll.core.workers.infer_interface import EngineStats, GenerateRequest, GenerateResult, WeightUpdateMode
from roll.core.workers.response_text import Tokenizer
from roll.platform.cores import Cores, one_thread
from roll.strategies.float32_head import HALVES
from roll.strategies.infer.hf.decode_graphs import CudaCapture
from roll.strategies.infer.hf.slot_engine import SlotEngine
from roll.strategies.model_folder import load_model, load_tokenizer
from roll.strategies.vision.sight import Sight
from roll.transports.lending import LentBucket, take

T = TypeVar("T")


class HFInferStrategy:
    """Implements `InferStrategy`. Methods may be called from any event loop.

    `max_length` bounds prompt + response tokens of a request. `deterministic`: see `SlotEngine`. `version`: the policy version of
    the folder's weights. `adapters`: weight updates are adapters, merged here with their base. `images`: the folder of the run's.
    `graphs`: on a GPU decode steps are CUDA graphs. `cache_tokens`: the most that the KV cache may hold; in blocks on a GPU, in
    rows of full length elsewhere. `head_dtype`: fp32, or None for that of the layers."""

    def __init__(
        self,
        model_path: str,
        *,
        max_running_requests: int,
        max_length: int,
        dtype: str = "float32",
        device: str = "cpu",
        attn_implementation: str = "sdpa",
        threads: int | None = None,
        borrows_cores: bool = False,
        seed: int = 0,
        deterministic: bool = False,
        version: int = 0,
        adapters: AdapterSource | None = None,
        images: str | None = None,
        graphs: bool = True,
        cache_tokens: int | None = None,
        head_dtype: str | None = None,
    ) -> None:
        """Loads a Hugging Face folder (safetensors only) and starts the engine. `threads`: torch CPU threads of the engine; torch
        keeps this number per thread but also takes it as the default of threads that have not used torch yet. `borrows_cores`: it
        may have more while other workers wait. `seed` serves the requests that bring none."""
        given: dict[str, Any] = {"seed": seed, "deterministic": deterministic, "version": version, "adapters": adapters}

        def engine() -> SlotEngine:
            model: Any = load_model(Path(model_path), getattr(torch, dtype), attn_implementation).to(device)
            return SlotEngine(
                model,
                load_tokenizer(Path(model_path)),
                max_running_requests=max_running_requests,
                max_length=max_length,
                **given,
                sight=Sight.of(model, Path(model_path), images),
                cache_tokens=cache_tokens,
                fp32_head=head_dtype is not None,
                **(on_gpu(model, graphs) if model.device.type == "cuda" else {}),
            )

        self._start(engine, threads, borrows_cores)

    @classmethod
    def from_model(
        cls, model: nn.Module, tokenizer: Tokenizer | None, *, threads: int | None = None, seed: int = 0, **options: Any
    ) -> HFInferStrategy:
        """Starts a `SlotEngine` on a loaded model, which from now on belongs to it. Without a tokenizer results have no text."""
        self = cls.__new__(cls)
        self._start(lambda: SlotEngine(model, tokenizer, seed=seed, **options), threads)
        return self

    def _start(self, engine: Callable[[], SlotEngine], threads: int | None, borrows_cores: bool = False) -> None:
        """Returns when the engine's thread has built it. Raises the thread's error."""
        self._waiting: dict[str, Future[GenerateResult]] = {}
        """Results by request id; touched by the engine thread only."""
        self._when_drained: list[tuple[Callable[[], None], Future[Any]]] = []
        """Actions for the moment when no request is running; only the engine thread touches this list."""
        self._posted: queue.SimpleQueue[tuple[Callable[[], None], Future[Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ended: BaseException | None = None
        """The reason why the engine takes no more calls; set under the lock, after which nothing is posted."""
        self._closing = False
        built: Future[None] = Future()
        threads = threads or torch.get_num_threads()
        self._thread = threading.Thread(
            target=self._live, args=(engine, threads, borrows_cores, built), name="hf_infer", daemon=True
        )
        self._thread.start()
        built.result()

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Cancelling the call aborts the request in the engine. Raises the error that ended the engine, if one did."""
        done: Future[GenerateResult] = Future()

        def submit() -> None:
            self._engine.submit(request)
            self._waiting[request.request_id] = done

        self._post(submit, done)
        try:
            return await asyncio.wrap_future(done)
        except asyncio.CancelledError:
            self._call(lambda: self._engine.abort([request.request_id]))
            raise

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        await asyncio.wrap_future(self._call(lambda: self._engine.abort(request_ids)))

    async def receive_bucket(self, version: int, bucket: Bucket) -> None:
        """Runs beside the token steps, in a thread of the event loop's pool."""
        if self._ended is not None:
            raise self._ended
        await asyncio.to_thread(one_thread(self._engine.shadow.receive), version, bucket)

    async def receive_lent(self, version: int, bucket: LentBucket) -> None:
        if self._ended is not None:
            raise self._ended
        shadow = self._engine.shadow
        await asyncio.to_thread(one_thread(take), bucket, shadow.device, partial(shadow.receive, version))

    async def activate_weights(self, manifest: WeightManifest, mode: WeightUpdateMode) -> float:
        """Takes effect when the token step under way ends (`drain`: when the running requests have ended); see
        `SlotEngine.activate` for what the returned pause holds."""
        call = self._call_drained if mode == "drain" else self._call
        return await asyncio.wrap_future(call(lambda: self._engine.activate(manifest, mode)))

    async def sleep(self) -> None:
        await asyncio.wrap_future(self._call_drained(self._engine.sleep))

    async def wake(self) -> None:
        await asyncio.wrap_future(self._call(self._engine.wake))

    async def stats(self) -> EngineStats:
        return await asyncio.wrap_future(self._call(self._engine.stats))

    async def close(self) -> None:
        """Ends the engine after the token step under way; calls that are pending then raise `EngineClosed`. May be repeated."""

        def begin_closing() -> None:
            self._closing = True

        self._call(begin_closing)
        await asyncio.to_thread(self._thread.join)

    def _call(self, function: Callable[[], T]) -> Future[T]:
        """Has the engine thread call `function` at the next token border."""
        done: Future[T] = Future()
        self._post(lambda: done.set_result(function()), done)
        return done

    def _call_drained(self, function: Callable[[], T]) -> Future[T]:
        """As `_call`, when running requests have ended; nothing begins meanwhile."""
        done: Future[T] = Future()

        def begin() -> None:
            self._engine.hold_queue(True)
            self._when_drained.append((lambda: done.set_result(function()), done))

        self._post(begin, done)
        return done

    def _post(self, action: Callable[[], None], done: Future[Any]) -> None:
        """Posts an action, whose error `done` receives; setting its result is left to the action, or to a later step."""
        with self._lock:
            if self._ended is None:
                self._posted.put((action, done))
            else:
                done.set_exception(self._ended)

    def _live(self, engine: Callable[[], SlotEngine], threads: int, borrows_cores: bool, built: Future[None]) -> None:
        """The engine thread."""
        try:
            self._cores = Cores(threads, borrows_cores)
            self._engine = engine()
        except BaseException as error:
            built.set_exception(error)
        else:
            built.set_result(None)
            self._run()

    def _run(self) -> None:
        """Boundary: an error that ends it is handed to every waiting call, so no call ever hangs."""
        try:
            while not self._closing:
                self._act()
                self._cores.begin()
                for result in self._engine.step():
                    self._waiting.pop(result.request_id).set_result(result)
                if self._when_drained and self._engine.drained:
                    self._engine.hold_queue(False)
                    actions, self._when_drained = self._when_drained, []
                    for action, done in actions:
                        self._perform(action, done)
            reason: BaseException = EngineClosed("the inference engine was closed")
        except BaseException as error:
            reason = error
        with self._lock:
            self._ended = reason
        left = [
            *self._waiting.values(),
            *(done for _, done in self._when_drained),
            *(self._posted.get()[1] for _ in range(self._posted.qsize())),
        ]
        for done in left:
            if not done.done():
                done.set_exception(reason)

    def _act(self) -> None:
        """Runs the actions posted by now; waits for one if the engine has nothing to do."""
        if waits := self._engine.idle and self._posted.empty():
            self._cores.end()
        for _ in range(self._posted.qsize() or int(waits)):
            action, done = self._posted.get()
            if done.set_running_or_notify_cancel():
                self._perform(action, done)

    def _perform(self, action: Callable[[], None], done: Future[object]) -> None:
        try:
            action()
        except ValueError as refusal:
            done.set_exception(refusal)
        except BaseException as failure:
            done.set_exception(failure)
            raise


def on_gpu(model: Any, graphs: bool) -> dict[str, Any]:
    """The work of a `SlotEngine` there, and nowhere else."""
    block = KV_BLOCK if model.dtype in HALVES else 0  # the types that the kernel which attends over blocks takes
    return {"capture": CudaCapture(model.device) if graphs else None, "block": block}
