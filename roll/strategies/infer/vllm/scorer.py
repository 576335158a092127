"""A sequence classifier with one output, served by vLLM."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roll.core.errors import EngineError
from roll.strategies.infer.vllm.arguments import pooling_arguments
from roll.strategies.infer.vllm.process import EngineFigures, engine_environment, engine_folder, start_engine
from roll.strategies.model_folder import classifier_config


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
