"""A teacher behind an OpenAI-compatible endpoint that returns the log-probs of a prompt's tokens, as vLLM's server does.

It is asked for the completion of the policy's tokens, with `prompt_logprobs`. While it refuses connections, is busy or does not
answer it is asked again, until the time limit is over; an answer without these log-probs is an error at once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import torch

from roll.core.data.taught import TeacherAnswer
from roll.core.data.token_batch import TokenBatch
from roll.core.distributed.clock import monotonic
from roll.core.errors import Busy, ServiceFailed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

AT_ONCE = 16
"""Requests."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0
"""Between attempts; it doubles."""
LACKS = "returns no prompt_logprobs: it is no server that says the log-probs of a prompt, as vLLM's does"


class Endpoint:
    def __init__(self, role: str, url: str, limit_s: float, check: Callable[[int, str], None] | None = None) -> None:
        """`url`: as clients of OpenAI name it, http://host:port/v1. `limit_s`: until when one sample has to be answered. `check`:
        looks at a token and at its text to the teacher, where that is told."""
        self._role, self._url, self._limit_s, self._check = role, url.rstrip("/"), limit_s, check

    async def answers(self, batch: TokenBatch, top: int) -> list[TeacherAnswer]:
        """Returns the answer for each sample of the batch. Raises `ServiceFailed`."""
        places, masks = asyncio.Semaphore(AT_ONCE), batch.loss_mask.split(batch.lengths.tolist())
        # Nothing of this process's environment decides where samples go: no proxies, no .netrc.
        async with httpx.AsyncClient(trust_env=False) as client:
            model = await self._asked(client, "GET", "/models", None, _first_model)

            async def ask(tokens: list[int], own: list[bool]) -> TeacherAnswer:
                async with places:
                    body = {"model": model, "prompt": tokens, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": top or 1}
                    said = await self._asked(client, "POST", "/completions", body, lambda answer: _said(answer, tokens))
                    return self._answer(said, tokens, own, top)

            rows = zip(batch.rows, masks, strict=True)
            return await asyncio.gather(*(ask(row.tolist(), mask.tolist()) for row, mask in rows))

    async def _asked(self, client: httpx.AsyncClient, method: str, route: str, body: object, read: Any) -> Any:
        """Returns what `read` makes of the answer."""
        end, pause_s, why = monotonic() + self._limit_s, FIRST_PAUSE_S, "no answer"
        while (left := end - monotonic()) > 0:
            try:
                answer = await client.request(method, self._url + route, json=body, timeout=left)
                if answer.status_code == 429 or answer.status_code >= 500:
                    raise Busy(f"status {answer.status_code}")
                if answer.status_code != 200:
                    raise ServiceFailed(
                        f"{self._role}: {self._url}{route} refuses: status {answer.status_code}, {answer.text[:300]}"
                    )
                return read(answer.json())
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise ServiceFailed(
                    f"{self._role}: {self._url}{route} {LACKS} ({type(error).__name__}: {error!s:.100})"
                ) from error
            except (httpx.HTTPError, Busy) as error:
                why = f"{type(error).__name__}: {error}"
            await asyncio.sleep(min(pause_s, max(0.0, end - monotonic())))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        raise ServiceFailed(
            f"{self._role}: {self._url}{route} gave no answer in {self._limit_s:g} s (rpc_timeout), at last: {why}"
        )

    def _answer(
        self, said: Sequence[Mapping[str, Mapping[str, Any]] | None], tokens: Sequence[int], own: Sequence[bool], top: int
    ) -> TeacherAnswer:
        logprobs, ids, most = list[float](), list[list[int]](), list[list[float]]()
        for token, entries, trained in zip(tokens, said, own, strict=True):
            if trained:
                assert entries is not None, "the first token of a sample is not trained"
                said_of = entries[str(token)]
                logprobs.append(float(said_of["logprob"]))
                if self._check is not None and isinstance(text := said_of.get("decoded_token"), str):
                    self._check(token, text)
                best = sorted(((float(each["logprob"]), int(name)) for name, each in entries.items()), reverse=True)[:top]
                best += [(-math.inf, 0)] * (top - len(best))
                ids.append([name for _, name in best])
                most.append([logprob for logprob, _ in best])
        shape = (len(logprobs), top)
        found = (np.array(ids, np.int32).reshape(shape), np.array(most, np.float32).reshape(shape))
        return TeacherAnswer(self._role, np.array(logprobs, np.float32), *found)


def _first_model(answer: Any) -> str:
    return str(answer["data"][0]["id"])


def _said(answer: Any, tokens: Sequence[int]) -> list[dict[str, dict[str, float]] | None]:
    """Raises `KeyError`, `TypeError` or `ValueError` for an answer without log-probs of all tokens."""
    said: list[dict[str, dict[str, float]] | None] = answer["choices"][0]["prompt_logprobs"]
    if len(said) != len(tokens):
        raise ValueError(f"{len(said)} entries for {len(tokens)} tokens")
    for token, entries in list(zip(tokens, said, strict=True))[1:]:
        if entries is None or not math.isfinite(entries[str(token)]["logprob"]):
            raise ValueError(f"no finite log-prob of token {token}")
    return said


TRIED, TRIAL_S = 12, 60.0
"""Tokens, and seconds for each of its two answers: the first of a server that has just started takes its time."""


def try_endpoint(role: str, url: str, top: int, tokenizer: PreTrainedTokenizerBase) -> None:
    """Asks about tokens from all over the policy's vocabulary, before anything starts. Raises `ValueError` if it cannot answer,
    or if one of them is another text to it."""
    size = len(tokenizer)
    tokens = [place * size // TRIED for place in range(min(TRIED, size))]
    mask = torch.arange(len(tokens)) > 0
    batch = TokenBatch(
        lengths=torch.tensor([len(tokens)]),
        scores=torch.zeros(1),
        temperatures=torch.ones(1),
        tokens=torch.tensor(tokens),
        loss_mask=mask,
        behaviour_logprobs=torch.zeros(len(tokens)),
        advantages=torch.zeros(len(tokens)),
    )

    def check(token: int, text: str) -> None:
        ours = tokenizer.decode([token], clean_up_tokenization_spaces=False)
        if text != ours:
            raise ValueError(f"token {token} is {text!r} to it, {ours!r} to the policy: the tokenizers differ")

    work = Endpoint(role, url, TRIAL_S, check).answers(batch, top)
    try:
        with ThreadPoolExecutor(1) as thread:  # a loop may run in this one
            thread.submit(asyncio.run, work).result()
    except ServiceFailed as error:
        raise ValueError(str(error)) from error
