"""A teacher served by SGLang: the log-probs of texts that it is given, and the most probable tokens in the place of each.

SGLang says them of the temperature 1 alone. It reads the cached tokens of a text up to the first that is asked about, so that the
samples of a prompt share its computation.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers import AutoConfig

from roll.core.data.taught import TeacherAnswer
from roll.core.errors import EngineError
from roll.strategies.infer.sglang.arguments import teaching_arguments
from roll.strategies.infer.sglang.server import start_server


class SGLangTeacher:
    """Implements `Teacher`. The constructor starts the server on a Hugging Face folder, as `SGLangInferStrategy` does."""

    def __init__(
        self,
        model_path: str,
        *,
        temperature: float,
        top: int,
        devices: Sequence[str] = ("cpu",),
        threads: int = 1,
        engine_args: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        """`temperature`: of the log-probs. `top`: the number of most probable tokens. `others`: as `teaching_arguments`."""
        if temperature != 1:
            raise ValueError(f"SGLang says a text's log-probs of temperature 1 alone, not of {temperature:g}")
        given, self._top = dict(engine_args or {}), top
        self._most = min(top, int(AutoConfig.from_pretrained(model_path).get_text_config().vocab_size))
        self._server = start_server(given, teaching_arguments(model_path, given, devices=devices, **others), devices, threads)
        self._client = self._server.client()

    async def answer(self, token_ids: Sequence[int], places: Sequence[int]) -> TeacherAnswer:
        """Cancelling the call leaves a prefill behind that nobody reads. Raises `EngineError`."""
        if not places:
            return TeacherAnswer("", np.zeros(0, np.float32), *chosen({}, 0, places, 0, self._top))
        start = min(places) - 1
        body = {
            "input_ids": list(token_ids),
            "return_logprob": True,
            "logprob_start_len": start,  # the entries are of the tokens from this one on, and its own is empty
            "top_logprobs_num": self._most,
            "return_flat_raw_top_logprobs": self._most > 0,
            "return_flat_raw_top_logprobs_b64": self._most > 0,
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
        }
        meta = (await self._server.post(self._client, "generate", body))["meta_info"]
        said = meta.get("input_token_logprobs") or []
        if len(said) != len(token_ids) - start:
            raise EngineError(f"SGLang said log-probs of {len(said)} of {len(token_ids) - start} tokens")
        logprobs = np.array([said[place - start][0] for place in places], np.float32)
        return TeacherAnswer("", logprobs, *chosen(meta, start, places, self._most, self._top))

    async def close(self) -> None:
        await self._client.aclose()
        await asyncio.to_thread(self._server.close)


def chosen(
    meta: Mapping[str, Any], start: int, places: Sequence[int], most: int, top: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns the ids and log-probs [places, top] of the most probable tokens. `meta`: SGLang's answer about the tokens from
    `start` on, of which it has said `most` for each; what is asked beyond them is impossible."""
    ids, logprobs = np.zeros((len(places), top), np.int32), np.full((len(places), top), -np.inf, np.float32)
    if most and places:
        rows = np.array(places) - start - meta["input_top_logprobs_null_prefix"]
        for into, name, kind in ((ids, "idx", np.int32), (logprobs, "val", np.float32)):
            flat = np.frombuffer(base64.b64decode(meta[f"input_top_logprobs_{name}_flat_b64"]), kind)
            into[:, :most] = flat.reshape(meta["input_top_logprobs_shape"])[rows]
    return ids, logprobs
