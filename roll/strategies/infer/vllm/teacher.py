"""A teacher served by vLLM: the log-probs of texts that it is given, and the most probable tokens in the place of each."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers import AutoConfig

from roll.core.data.taught import TeacherAnswer
from roll.core.errors import EngineError
from roll.strategies.infer.vllm.arguments import teaching_arguments
from roll.strategies.infer.vllm.process import ReadingEngine


class VLLMTeacher:
    """Implements `Teacher`. The constructor starts the engine on a Hugging Face folder, as `VLLMInferStrategy` does."""

    def __init__(
        self,
        model_path: str,
        *,
        temperature: float,
        top: int,
        devices: Sequence[str] = ("cpu",),
        threads: int | None = None,
        engine_args: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        """`temperature`: of the log-probs. `top`: the number of most probable tokens. `others`: as `teaching_arguments`."""
        model: Any = AutoConfig.from_pretrained(model_path).get_text_config()
        self._most = min(top, int(model.vocab_size))
        arguments = teaching_arguments(
            model_path, engine_args or {}, model=model, top=self._most, cpu=set(devices) == {"cpu"}, **others
        )
        # A text may have as many tokens as the model takes: the one that is sampled behind it is never computed with.
        self._engine = ReadingEngine(arguments, list(devices), threads, VLLM_ALLOW_LONG_MAX_MODEL_LEN="1")
        self._temperature, self._top = temperature, top
        self._adopting: asyncio.Task[None] | None = None
        self._numbers = itertools.count()
        self.close = self._engine.close

    async def answer(self, token_ids: Sequence[int], places: Sequence[int]) -> TeacherAnswer:
        """Cancelling the call aborts the request in the engine. Raises `EngineError`."""
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=0, max_tokens=1, ignore_eos=True, prompt_logprobs=self._most, flat_logprobs=True, detokenize=False
        )
        said: Any = None
        with self._engine.errors() as engine:
            if self._adopting is None:  # what only a running event loop can tell the engine
                self._adopting = asyncio.create_task(engine.collective_rpc("adopt_teacher", args=(self._temperature,)))
            await asyncio.shield(self._adopting)
            async for output in engine.generate({"prompt_token_ids": list(token_ids)}, params, f"text-{next(self._numbers)}"):
                said = output.prompt_logprobs if output.prompt_logprobs is not None else said
        if said is None or len(said) != len(token_ids):
            raise EngineError(f"the vLLM engine said log-probs of {len(said or ())} of {len(token_ids)} tokens")
        return self._chosen(said, places)

    def _chosen(self, said: Any, places: Sequence[int]) -> TeacherAnswer:
        """`said`: of each place but the first its token, and then the most probable ones, that one perhaps among them."""
        each = self._most + 1
        first = np.array([said.start_indices[place] for place in places], np.int64)[:, None]
        rows = first + np.arange(each)
        ids = np.array(said.token_ids, np.int32)[rows].reshape(len(places), each)
        logprobs = np.array(said.logprobs, np.float32)[rows].reshape(len(places), each)
        missing = self._top - self._most
        most = np.pad(ids[:, 1:], ((0, 0), (0, missing)))
        top = np.pad(logprobs[:, 1:], ((0, 0), (0, missing)), constant_values=-np.inf)
        return TeacherAnswer("", logprobs[:, 0], most, top)
