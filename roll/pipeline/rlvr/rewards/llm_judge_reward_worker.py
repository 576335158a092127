"""Reward 1 if a language model says that the response answers as the reference does, 0 if it says no."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from roll.data.sample import Sample
from roll.pipeline.rlvr.rewards.json_service import Busy, JsonService
from roll.pipeline.rlvr.rewards.math_rule_reward_worker import answer_text
from roll.pipeline.rlvr.rewards.reward_worker import Grade, RewardWorker
from roll.pipeline.rlvr.rewards.verdict import SCHEMA, question, verdict

CACHED = 20_000
"""Verdicts that a worker remembers, by what was asked."""
MAX_TOKENS = 512
ENDPOINT = "/chat/completions"


class LLMJudgeRewardWorker(RewardWorker):
    """Asks a server that speaks OpenAI's chat completions. `reward_args`: `judge_api_url` (https://host/v1), `judge_model_name`,
    `judge_api_key` or `judge_api_key_env` (the variable that has it), `judge_prompt` (a question of your own), `per_second` (the
    most requests of one worker), `json_schema` (true if the server holds a model to a schema)."""

    reads = frozenset(
        {"judge_model_type", "judge_api_url", "judge_model_name", "judge_api_key", "judge_api_key_env", "judge_prompt"}
        | {"per_second", "json_schema"}
    )

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        arguments = self.reward_args
        self._own: str | None = arguments.get("judge_prompt")
        if self._own is not None and "{response}" not in self._own:
            raise ValueError("reward_args.judge_prompt has no {response}")
        for name in ("judge_api_url", "judge_model_name"):
            if not arguments.get(name):
                raise ValueError(f"reward_args.{name} is missing")
        key = arguments.get("judge_api_key") or os.environ.get(arguments.get("judge_api_key_env") or "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        url = str(arguments["judge_api_url"]).rstrip("/").removesuffix(ENDPOINT) + ENDPOINT
        self._service = JsonService(url, self.timeout_s, headers, arguments.get("per_second"))
        self._body: dict[str, Any] = {"model": arguments["judge_model_name"], "temperature": 0, "max_tokens": MAX_TOKENS}
        if arguments.get("json_schema"):
            schema = {"name": "verdict", "strict": True, "schema": SCHEMA}
            self._body["response_format"] = {"type": "json_schema", "json_schema": schema}
        self._secret = secrets.token_bytes(32)
        self._verdicts: OrderedDict[str, bool] = OrderedDict()

    async def close(self) -> None:
        await self._service.close()

    async def grade(self, sample: Sample) -> Grade:
        """An empty answer is wrong without being asked for. A judge that gives no verdict has failed: that is an error."""
        response = answer_text(sample.response_text).strip()
        if not response:
            return 0.0
        prompt = sample.prompt
        asked = f"{prompt.text}\0{prompt.ground_truth}\0{response}"
        word = hmac.new(self._secret, asked.encode(), hashlib.sha256).hexdigest()[:24]
        if word not in self._verdicts:
            self._verdicts[word] = await self._ask(question(prompt.text, response, prompt.ground_truth, word, self._own), word)
            if len(self._verdicts) > CACHED:
                self._verdicts.popitem(last=False)
        return float(self._verdicts[word])

    async def _ask(self, text: str, word: str) -> bool:
        body = self._body | {"messages": [{"role": "user", "content": text}]}
        return bool(await self._service.ask_until(body, lambda answer: self._verdict(answer, word)))

    def _verdict(self, answer: dict[str, Any], word: str) -> bool:
        try:
            content = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            raise Busy("the answer has no message") from None
        found = verdict(str(content or ""), word, self._own is not None)
        if found is None:
            raise Busy("the judge gives no verdict")
        return found
