"""A user's function as a reward worker: `worker_cls: my_module.reward`. The function returns what `grade` may return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll.data.sample import Sample
from roll.distributed.backend import import_object
from roll.pipeline.rlvr.rewards.reward_worker import Grade, RewardWorker


class FunctionRewardWorker(RewardWorker):
    def __init__(self, config: Mapping[str, Any]) -> None:
        """`config["worker_cls"]`: the dotted path of the function, plain or a coroutine function."""
        super().__init__(config)
        # The worker calls it as it would its own method, in a thread if it is plain.
        self.grade = import_object(config["worker_cls"])  # type: ignore[method-assign]

    async def grade(self, sample: Sample) -> Grade:
        raise AssertionError("replaced by the function")


PATH = f"{__name__}.{FunctionRewardWorker.__name__}"


def worker_class_path(path: str) -> str:
    """The class that carries what `worker_cls` names: that class itself, or this one for a function. Raises `ValueError`."""
    found = import_object(path)
    if isinstance(found, type):
        if not issubclass(found, RewardWorker):
            raise ValueError(f"{path} is a class, but no RewardWorker; derive it from roll.pipeline.rlvr.rewards.RewardWorker")
        return path
    if callable(found):
        return PATH
    raise ValueError(f"{path} is neither a class nor a function, but {type(found).__name__}")
