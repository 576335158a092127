"""Sequence classifiers with one output, by `strategy_name`: tokens go in, a number comes out."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import torch

from roll.errors import EngineError
from roll.strategies.infer.foreign import OtherInterpreterEngine
from roll.strategies.infer.vllm.arguments import pooling_arguments
from roll.strategies.infer.vllm.process import EngineFigures, engine_environment, engine_folder, start_engine
from roll.strategies.model_folder import classifier_config, load_classifier


class Scorer(Protocol):
    """Its coroutines belong to one event loop; many calls of `score` may be open."""

    async def score(self, token_ids: Sequence[int]) -> float:
        """The classifier's output, no activation applied, for a text of at most `max_length` tokens."""

    async def close(self) -> None: ...


def make_scorer(name: str, options: dict[str, Any]) -> Scorer:
    """Loads the model. Raises `ValueError` for a folder that holds no classifier with one output."""
    if name == "hf_infer":
        read = ("model_path", "max_tokens", "dtype", "device", "attn_implementation", "threads")  # nothing is sampled
        return HFScorer(**{option: options[option] for option in read})
    if name != "vllm":
        raise ValueError(f"{name} serves no classifier; known: hf_infer, vllm")
    if python := options["engine_args"].get("python"):
        engine_args = {key: value for key, value in options["engine_args"].items() if key != "python"}
        return OtherInterpreterScorer(python, name, options | {"engine_args": engine_args})
    return VLLMScorer(**options)


_Waiting = tuple[Sequence[int], "asyncio.Future[float]"]


class HFScorer:
    """Implements `Scorer`. `max_tokens`: of a batch, padding included; a longer text is a batch of its own."""

    def __init__(
        self,
        model_path: str,
        *,
        max_tokens: int,
        dtype: str = "float32",
        device: str = "cpu",
        attn_implementation: str = "sdpa",
        threads: int | None = None,
    ) -> None:
        model: Any = load_classifier(Path(model_path), getattr(torch, dtype), attn_implementation)
        self._model = model.to(device).eval()
        self._max_tokens, self._device, self._threads = max_tokens, device, threads
        self._waiting: deque[_Waiting] = deque()
        self._scoring: asyncio.Task[None] | None = None

    async def score(self, token_ids: Sequence[int]) -> float:
        result: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append((token_ids, result))
        if self._scoring is None or self._scoring.done():
            self._scoring = asyncio.create_task(self._score())
        return await result

    async def close(self) -> None:
        if self._scoring is not None:
            self._scoring.cancel()
            await asyncio.wait([self._scoring])

    async def _score(self) -> None:
        """Whoever is cancelled is left out of the batches that follow. An error is that of each text in its batch."""
        while batch := next_batch(self._waiting, self._max_tokens):
            try:
                values = await asyncio.to_thread(self._forward, [token_ids for token_ids, _ in batch])
            except Exception as error:  # boundary: a model may raise anything
                for _, result in batch:
                    if not result.done():
                        result.set_exception(error)
                continue
            for (_, result), value in zip(batch, values, strict=True):
                if not result.done():
                    result.set_result(value)

    @torch.inference_mode()
    def _forward(self, texts: Sequence[Sequence[int]]) -> list[float]:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        longest, seen = max(map(len, texts)), {token for text in texts for token in text}
        # transformers takes the last token that is no padding, also where a text ends with the padding token: padded is with a
        # token that no text of the batch has.
        filler = next(token for token in count() if token not in seen)
        self._model.config.get_text_config().pad_token_id = filler
        ids = torch.tensor([[*text, *[filler] * (longest - len(text))] for text in texts], device=self._device)
        mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts], device=self._device)
        values: list[float] = self._model(input_ids=ids, attention_mask=mask).logits[:, 0].float().tolist()
        return values


def next_batch(waiting: deque[_Waiting], max_tokens: int) -> list[_Waiting]:
    """Takes the first that wait, as many as fit into `max_tokens` with padding, and one at least."""
    batch: list[_Waiting] = []
    longest = 0
    while waiting:
        token_ids, result = waiting[0]
        longest = max(longest, len(token_ids))
        if batch and longest * (len(batch) + 1) > max_tokens:
            break
        waiting.popleft()
        if not result.done():
            batch.append((token_ids, result))
    return batch


class VLLMScorer:
    """Implements `Scorer`. The constructor starts the engine on a Hugging Face folder, as `VLLMInferStrategy` does."""

    def __init__(
        self,
        model_path: str,
        *,
        max_tokens: int,
        max_running_requests: int,
        max_length: int,
        dtype: str = "float32",
        devices: Sequence[str] = ("cpu",),
        threads: int | None = None,
        seed: int = 0,
        engine_args: Mapping[str, Any] | None = None,
    ) -> None:
        arguments = pooling_arguments(
            model_path,
            engine_args or {},
            model=classifier_config(Path(model_path)).get_text_config(),
            dtype=dtype,
            seed=seed,
            max_length=max_length,
            max_running_requests=max_running_requests,
            max_tokens=max_tokens,
            cpu=set(devices) == {"cpu"},
        )
        self._folder = engine_folder()
        environment = engine_environment(list(devices), threads, arguments, self._folder.path)
        self._engine: Any = start_engine(arguments, environment, EngineFigures())
        self._numbers = itertools.count()

    async def score(self, token_ids: Sequence[int]) -> float:
        """Cancelling the call aborts the request in the engine. Raises `EngineError`."""
        from vllm import PoolingParams

        params = PoolingParams(task="classify", use_activation=False)
        name, value = f"text-{next(self._numbers)}", None
        try:
            async for output in self._engine.encode({"prompt_token_ids": list(token_ids)}, params, name):
                value = float(output.outputs.data[0])
        except ValueError as refusal:
            raise ValueError(f"vLLM refuses the text: {refusal}") from None
        except Exception as error:  # boundary: vLLM may raise anything
            raise EngineError(f"{type(error).__name__} in the vLLM engine: {error}") from error
        if value is None:
            raise EngineError("the vLLM engine gave no score")
        return value

    async def close(self) -> None:
        if self._engine.output_handler is not None:
            self._engine.output_handler.cancel()  # vLLM would report the end as a failure
        await asyncio.to_thread(self._engine.shutdown)
        self._engine = None  # while its own clean-up still finds the modules it needs
        self._folder.remove()


class OtherInterpreterScorer(OtherInterpreterEngine):
    """Implements `Scorer`."""

    host = "roll.strategies.score:ScorerHost"

    async def score(self, token_ids: Sequence[int]) -> float:
        return float(await self._call("score", list(token_ids)))


class ScorerHost:
    def __init__(self, strategy_name: str, options: dict[str, object]) -> None:
        self._scorer = make_scorer(strategy_name, options)
        self.close = self._scorer.close

    async def score(self, token_ids: Sequence[int]) -> float:
        return await self._scorer.score(token_ids)
