"""Functions that run on a certain node of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from roll.distributed.child import same_imports


def task_on(node: str, function: Callable[..., object]) -> Any:
    """The function as a task of Ray on that node."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    task: Any = ray.remote(function)
    return task.options(num_cpus=0, scheduling_strategy=there, runtime_env={"env_vars": same_imports()})
