"""A reward grades one example before any worker starts, so that a slip in its code is found before groups are dropped for it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from roll.configs.worker import RewardConfig
from roll.data.sample import Prompt, Sample
from roll.pipeline.rlvr.rewards.function_reward_worker import worker_class
from roll.pipeline.rlvr.rewards.reward_worker import RewardWorker
from roll.pipeline.trial import SLIPS, START_S, try_aside


def try_reward(reward: RewardConfig, prompt: Prompt, policy: str = "") -> None:
    """Has the domain's worker judge the ground truth as if it were a response. `policy`: folder of the policy's model. Raises
    `ValueError` for a worker that cannot be made, and for a slip in its code."""
    cls = worker_class(reward.worker_cls)
    for name in reward.models:
        if cls.asks != name:
            raise ValueError(f"{cls.__name__} asks no {name}, but there is one")
        return  # this process is no place for a model
    with suppress(TimeoutError):  # a judge that is slow now may be faster when the run begins
        try_aside(lambda: _try(cls, asdict(reward) | {"policy": policy}, prompt), reward.timeout_s + START_S)


async def _try(cls: type[RewardWorker], config: Mapping[str, Any], prompt: Prompt) -> None:
    try:
        worker = cls(config)
    except Exception as error:  # boundary: a user's class
        raise ValueError(f"it cannot be made: {type(error).__name__}: {error}") from error
    try:
        await worker.start()
        await worker.judge(Sample(prompt, 0, [], [], [], "stop", response_text=worker.solution(prompt.ground_truth)))
    except SLIPS as error:
        message = f"it fails on the ground truth of prompt {prompt.uid}: {type(error).__name__}: {error}"
        raise ValueError(message) from error
    except (Exception, SystemExit):  # boundary: the world may be otherwise when the run begins
        return
    finally:
        await worker.close()
