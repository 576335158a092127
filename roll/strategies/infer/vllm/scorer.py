"""A sequence classifier with one output, served by vLLM."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roll.core.errors import EngineError
from roll.strategies.infer.vllm.arguments import pooling_arguments
from roll.strategies.infer.vllm.process import ReadingEngine
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
        self._engine = ReadingEngine(arguments, list(devices), threads)
        self._numbers = itertools.count()
        self.close = self._engine.close

    async def score(self, token_ids: Sequence[int]) -> float:
        """Cancelling the call aborts the request in the engine. Raises `EngineError`."""
        from vllm import PoolingParams

        params = PoolingParams(task="classify", use_activation=False)
        name, value = f"text-{next(self._numbers)}", None
        with self._engine.errors() as engine:
            async for output in engine.encode({"prompt_token_ids": list(token_ids)}, params, name):
                value = float(output.outputs.data[0])
        if value is None:
            raise EngineError("the vLLM engine gave no score")
        return value
