"""Child process of ScoreRewardWorker: calls the function, for one response at a time."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

MODULE = "custom_reward_function"
"""Name of the file's module."""


def function_in(path: str, name: str) -> Callable[..., Any]:
    """Returns a function of a file. Its folder is not searched for further modules. Raises the errors of the file."""
    spec = importlib.util.spec_from_file_location(MODULE, Path(path).expanduser())
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no file of Python")
    module = sys.modules[MODULE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        own = [each for each, thing in vars(module).items() if inspect.isfunction(thing) and thing.__module__ == MODULE]
        raise AttributeError(f"{path} has no {name}; it has {', '.join(own) or 'no function'}")
    found: Callable[..., Any] = getattr(module, name)
    return found


class ScoreChild:
    def __init__(self, config: Mapping[str, Any]) -> None:
        args = config["reward_args"]
        self._function = function_in(args["path"], args.get("name", "compute_score"))
        self._further = args.get("reward_kwargs") or {}

    def grade(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._function(**asked, **self._further)
        return scored(asyncio.run(answer) if inspect.iscoroutine(answer) else answer)


def scored(answer: Any) -> dict[str, Any]:
    """Returns the reward, and as its parts every other number of a mapping."""
    given = answer if isinstance(answer, Mapping) else {"score": answer}
    if "score" not in given:
        raise KeyError(f"the function returned a mapping without score; it has {', '.join(map(str, given)) or 'nothing'}")
    numbers = {str(name): _number(value) for name, value in given.items()}
    reward = numbers.pop("score")
    if reward is None:
        raise TypeError(f"the score must be a number, not {type(given['score']).__name__}")
    return {"reward": reward, "parts": {name: value for name, value in numbers.items() if value is not None}}


def _number(value: Any) -> float | None:
    item = value.item() if hasattr(value, "item") and getattr(value, "size", None) in (1, None) else value
    return float(item) if isinstance(item, bool | int | float) else None
