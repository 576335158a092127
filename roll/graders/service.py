"""Services that judge: JSON is posted to them, and they answer with a JSON object."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from roll.core.data.numbers import plain_number
from roll.core.data.sample import Sample
from roll.core.errors import Busy, ServiceFailed
from roll.core.rewards.worker import Grade, RewardWorker

ATTEMPTS = 4
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0
"""Pauses between attempts, which double. A service may ask for a longer one (Retry-After)."""


class JsonService:
    def __init__(
        self, url: str, limit_s: float, headers: Mapping[str, str] | None = None, per_second: float | None = None
    ) -> None:
        """`limit_s`: for one request. `per_second`: the most requests; None: no limit."""
        self.url = url
        self._interval_s = 1 / per_second if per_second else 0.0
        self._next = 0.0
        # Nothing of this process's environment decides where samples go: no proxies, no .netrc.
        self._client = httpx.AsyncClient(timeout=limit_s, headers=dict(headers or {}), trust_env=False)

    async def close(self) -> None:
        await self._client.aclose()

    async def ask(self, body: Mapping[str, object]) -> dict[str, Any]:
        """Raises `ServiceFailed`."""
        answer: dict[str, Any] = await self.ask_until(body, lambda answer: answer)
        return answer

    async def ask_until(self, body: Mapping[str, object], read: Callable[[dict[str, object]], object]) -> Any:
        """Returns the answer as `read` reads it; asks the service again while `read` raises `Busy`. Raises `ServiceFailed`."""
        why, pause_s = "", FIRST_PAUSE_S
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            await self._turn()
            try:
                answer = await self._client.post(self.url, json=body)
                if answer.status_code == 429 or answer.status_code >= 500:
                    pause_s = max(pause_s, _seconds(answer.headers.get("Retry-After")))
                    raise Busy(f"status {answer.status_code}")
                if answer.status_code != 200:
                    raise ServiceFailed(f"{self.url} refuses: status {answer.status_code}, {answer.text[:200]}")
                content = answer.json()
                if not isinstance(content, dict):
                    raise Busy("its answer is no JSON object")
                return read(content)
            except (httpx.HTTPError, ValueError, RecursionError, Busy) as error:
                why = f"{type(error).__name__}: {error}"
        raise ServiceFailed(f"{self.url} has failed {ATTEMPTS} times, at last with {why}"[:300])

    async def _turn(self) -> None:
        now = time.monotonic()
        mine = max(now, self._next)
        self._next = mine + self._interval_s
        if mine > now:
            await asyncio.sleep(mine - now)


def _seconds(text: str | None) -> float:
    return min(float(text), LONGEST_PAUSE_S) if text is not None and text.isdecimal() else 0.0


class HTTPRewardWorker(RewardWorker):
    """Posts {"prompt", "response", "ground_truth", "tag", "domain", "finish_reason", "row"} to `reward_args.url` and reads
    {"reward": number, "parts": {name: number}}. `reward_args.per_second`: the most requests of one worker."""

    reads = frozenset({"url", "per_second"})

    def __init__(self, config: Mapping[str, object]) -> None:
        super().__init__(config)
        if not self.reward_args.get("url"):
            raise ValueError("reward_args.url is missing: where the service is")
        self._service = JsonService(str(self.reward_args["url"]), self.timeout_s, per_second=self.reward_args.get("per_second"))

    async def close(self) -> None:
        await self._service.close()

    async def grade(self, sample: Sample) -> Grade:
        prompt = sample.prompt
        answer = await self._service.ask(
            {
                "prompt": prompt.text,
                "response": sample.response_text,
                "ground_truth": prompt.ground_truth,
                "tag": prompt.tag,
                "domain": prompt.domain,
                "finish_reason": sample.finish_reason,
                "row": prompt.row,
            }
        )
        if (reward := plain_number(answer.get("reward"))) is None:
            raise ValueError(f"the service's answer has no number as its reward: {str(answer)[:100]}")
        return reward, answer.get("parts") or {}
