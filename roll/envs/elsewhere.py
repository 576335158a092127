"""Questions to an environment as a whole, in this interpreter or in that of its package: its rules, a check, an audit.

Another interpreter answers by a child process (`platform/child.py`), which runs the same function there and ends."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from roll.core.configs.dotted_path import dotted_path, named_object
from roll.core.configs.problems import ConfigError, Problem
from roll.core.distributed.user_code import in_thread
from roll.core.errors import CallFailed, ChildDied
from roll.envs.environment import checked_reset, checked_step, seen
from roll.envs.packages import package_of, shorthand
from roll.envs.registry import make_env
from roll.envs.rules import instructions
from roll.platform.child import START_LIMIT_S, Child
from roll.platform.interpreters import environment, imports
from roll.platform.temp_folder import own_package


def rules(env_type: str, env_config: Mapping[str, object], key: str = "env_config") -> str:
    """The instructions of an environment, of which an instance is made to see whether it can be. Raises `ConfigError`."""
    made = make_env(env_type, env_config, key)
    made.close()
    return str(instructions(made))


def asked(python: str | None, function: Callable[..., Any], *arguments: object) -> Any:
    """Returns the value of the function, plain or a coroutine function of this package, there; a dataclass becomes a
    dictionary. None is this interpreter. Raises `ConfigError`."""
    if python is None:
        return _plain(function, arguments)

    async def ask() -> Any:
        path = own_package("envs")
        child = Child("roll.envs.elsewhere:Errand", environment=environment() | imports(str(path.path)), python=python)
        try:
            await child.ready(START_LIMIT_S)
            return await child.ask(None, "run", dotted_path(function), *arguments)
        finally:
            await child.kill()
            path.remove()

    try:
        answer = in_thread("errand", lambda: asyncio.run(ask())).outcome.result()
    except (CallFailed, ChildDied, TimeoutError, OSError) as failure:
        what = "no answer" if isinstance(failure, TimeoutError) else str(failure)
        raise ConfigError([Problem("python", python, f"cannot be asked: {what}", "roll env list says what it has")]) from failure
    if problems := answer["problems"]:
        raise ConfigError([Problem(**each) for each in problems])
    return answer["value"]


def prompts(env_type: str, env_config: Mapping[str, object], seeds: Sequence[int]) -> list[dict[str, str]]:
    """Returns an environment's first observations as prompts, whose ground truth holds its task and the answer of its oracle.
    Raises `ConfigError` where an answer does not end the episode."""
    env: Any = make_env(env_type, env_config)
    rows = []
    for seed in seeds:
        question = checked_reset(_now(env.reset(seed)))[0]
        answer = env.oracle_action() if hasattr(env, "oracle_action") else None
        task = {"env_id": env_config.get("env_id"), "seed": seed, "answer": answer}
        text = "\n\n".join(filter(None, (instructions(env), seen(question))))
        rows.append({"id": f"{env_type}:{seed}", "prompt": text, "ground_truth": json.dumps(task)})
        if len(rows) == 1:
            _paid(env, answer or "")
    env.close()
    return rows


_PLAYED: dict[str, Any] = {}
"""Environments by type and configuration."""


def answered(task: tuple[str, dict[str, object], str, str]) -> float:
    """Returns the reward by the environment (as in `roll env check`, with its `env_config`) for a response to the task of a
    ground truth of `prompts`. The user names the environment, not the data, whose text may be anyone's: a row may choose among
    those that a package lists. Raises `ValueError`."""
    env_type, env_config = shorthand(task[0], task[1])
    truth, response = json.loads(task[2]), task[3]
    chosen = truth["env_id"]
    if chosen is not None and "env_id" not in env_config:
        if package_of(env_type) is None or chosen not in named_object(f"roll.envs.{env_type}:env_ids")():
            raise ValueError(
                f"a row chooses the environment {chosen!r}, which {env_type} does not list: reward_args.env names it"
            )
        env_config = {**env_config, "env_id": chosen}
    kind = json.dumps([env_type, env_config], sort_keys=True)
    env = _PLAYED.get(kind) or _PLAYED.setdefault(kind, make_env(env_type, env_config))
    _now(env.reset(truth["seed"]))
    return _paid(env, response)


def _paid(env: Any, response: str) -> float:
    _, reward, terminated, truncated, _ = checked_step(_now(env.step(response)))
    if not (terminated or truncated):
        raise ConfigError(
            [Problem("env_type", type(env).__name__, "goes on after an answer, so it is no prompt", "an agentic run plays it")]
        )
    return reward


class Errand:
    """The side of the other interpreter."""

    def run(self, path: str, *arguments: object) -> dict[str, object]:
        try:
            return {"value": _plain(named_object(path), arguments), "problems": []}
        except ConfigError as error:
            return {"problems": [asdict(each) for each in error.problems]}


def _plain(function: Callable[..., Any], arguments: tuple[object, ...]) -> Any:
    value = _now(function(*arguments))
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _now(value: Any) -> Any:
    return asyncio.run(value) if inspect.iscoroutine(value) else value
