"""A reward worker that was written for ROLL, as it stands, in child processes: `compute_rewards` runs on the main thread of one,
as in ROLL, so that time limits by signals hold, and nothing of it reaches the process that asks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from roll.core.configs.dotted_path import dotted_path
from roll.core.data.sample import Sample
from roll.core.distributed.user_code import SLIPS
from roll.core.errors import CallFailed, ChildDied
from roll.core.rewards.worker import Grade, RewardWorker
from roll.platform.child import START_LIMIT_S, ChildPool, same_imports

_NEEDED = ("worker_cls", "world_size", "tag_included", "timeout_s", "reward_args", "policy")


class RollRewardWorker(RewardWorker):
    keeps_time_limit = True  # which begins when a process is ready
    starts_within_s = START_LIMIT_S
    child: ClassVar[str] = "roll.compat.code.reward_child:RewardChild"
    """Class of the object in the child process."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        own = config["worker_cls"]
        block = {name: config[name] for name in _NEEDED if name in config}
        block["worker_cls"] = own if isinstance(own, str) else dotted_path(own)
        environment = dict(os.environ) | same_imports()
        self._pool = ChildPool(self.child, block, environment=environment)

    async def start(self) -> None:
        try:
            self._pool.give_back(await self._pool.take())
        except CallFailed as failure:
            raise as_raised(failure) from None

    async def close(self) -> None:
        await self._pool.close()

    async def grade(self, sample: Sample) -> Grade:
        try:
            child = await self._pool.take()
            try:
                answer = await child.ask(self.timeout_s, "grade", self.question(sample))
            finally:
                self._pool.give_back(child)
        except CallFailed as failure:
            raise as_raised(failure) from None
        except ChildDied as ending:
            raise RuntimeError(f"its process died ({ending})") from None
        return answer["reward"], answer["parts"]

    def question(self, sample: Sample) -> dict[str, Any]:
        return question(sample)


def question(sample: Sample) -> dict[str, Any]:
    """Returns the question to the child: the columns of the row, by ROLL's names, and the tokens."""
    prompt = sample.prompt
    of_prompt = {"id": prompt.uid, "ground_truth": prompt.ground_truth, "tag": prompt.tag, "domain": prompt.domain}
    of_prompt["rollout_id"] = f"{prompt.uid}/{sample.index}"
    texts = {"prompt": prompt.text, "messages": prompt.conversation}
    return {
        "columns": texts | prompt.row | of_prompt,
        "prompt_ids": list(prompt.input_ids),
        "response_ids": list(sample.response_ids),
        "response_text": sample.response_text,
    }


def as_raised(failure: CallFailed) -> Exception:
    """Returns a slip in the worker's code as an error of its class, any other failure as a `RuntimeError`."""
    slip = next((cls for cls in SLIPS if cls.__name__ in failure.types), None)
    text = failure.text[1:-1] if slip is KeyError and failure.text[:1] in ("'", '"') else failure.text  # it quotes its own
    return RuntimeError(str(failure)) if slip is None else slip(text)
