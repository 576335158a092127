"""Plays environments for an asynchronous caller, so that what one of them does costs the others nothing.

    execution   runs                                     a step that hangs            memory of an environment
    inline      on the event loop, between its other     holds up all of them; has    its objects
                work                                     no limit
    thread      in a daemon thread of its own            its thread is left behind    its objects and a thread
    process     in a process of its own                  its process is killed        an interpreter: about 23 MB
                                                         (and its leaks have an end)

A process starts in about 0.4 s of one core, and a step through it costs about 0.4 ms. Whatever the failure (an exception, a time
limit, a death), it costs the episode under way: `EnvFailure`. The next `reset` makes a new instance. Environments with
coroutines (`interface`) are awaited on the event loop in both "inline" and "thread", and cancelled at the limit; so limits mean
nothing only for inline environments without coroutines.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeVar

from roll.chat.conversation import Reply
from roll.core.configs.agentic import EnvExecution
from roll.core.configs.problems import ConfigError, Problem
from roll.core.data.untrusted import described
from roll.core.distributed.clock import monotonic
from roll.core.errors import EnvFailure, FailureKind
from roll.envs.environment import Reset, Step, checked_number, checked_reset, checked_step, is_async, is_thread_safe
from roll.envs.executors import EnvExecutor, LoopExecutor, ProcessExecutor, ProcessPool, ThreadExecutor
from roll.envs.registry import config_problems, env_class
from roll.prompts.messages import Show

__all__ = ["EnvFailure", "EnvHandle", "EnvHost"]

T = TypeVar("T")


class EnvHost:
    def __init__(
        self,
        execution: EnvExecution = "inline",
        step_timeout_s: float | None = None,
        reset_timeout_s: float | None = None,
        max_concurrent: Mapping[str, int] | None = None,
        python: str | None = None,
        memory_mb: int = 0,
        show: Show | None = None,
    ) -> None:
        """Limits in seconds, None for none; the wait for a free place is not counted. `max_concurrent`: tag -> most calls of its
        environments at the same time; a tag that is missing (or 0) has no limit. `python`: the interpreter that the environments
        are in, whose processes then play them; None is this one. `memory_mb`: most of such a process, 0 for no limit.
        `show`: stores the images that environments show; None: none may."""
        self.execution: EnvExecution = execution if python is None else "process"
        self.is_elsewhere = python is not None
        self.step_timeout_s, self.reset_timeout_s = step_timeout_s, reset_timeout_s
        self.show = show
        self.failures: Counter[FailureKind] = Counter()
        """Episodes lost, by kind."""
        self._places = {tag: asyncio.Semaphore(most) for tag, most in (max_concurrent or {}).items() if most}
        self._pool = ProcessPool(python, memory_mb)
        self._handles: set[EnvHandle] = set()

    async def open(self, tag: str, env_type: str, env_config: Mapping[str, object]) -> EnvHandle:
        """A place for one environment. It is made at the first `reset`, so opening is cheap. Raises `ConfigError` if `env_type`
        names no environment of this interpreter, or if its constructor does not take the keys of `env_config`."""
        handle = EnvHandle(self, tag, env_type, env_config)
        self._handles.add(handle)
        return handle

    async def close(self) -> None:
        """Closes all environments and ends their processes."""
        await asyncio.gather(*(handle.close() for handle in list(self._handles)))
        await self._pool.close()

    @property
    def pids(self) -> list[int]:
        """Ids of the processes, idle processes included."""
        return self._pool.pids

    def executor(self, env_type: str, env_config: Mapping[str, object], on_loop: bool) -> EnvExecutor:
        if self.execution == "process":
            return ProcessExecutor(self._pool, env_type, env_config)
        if self.execution == "inline" or on_loop:
            return LoopExecutor(env_type, env_config)
        return ThreadExecutor(env_type, env_config)

    def place(self, tag: str) -> asyncio.Semaphore | None:
        return self._places.get(tag)

    def forget(self, handle: EnvHandle) -> None:
        self._handles.discard(handle)


class EnvHandle:
    """One environment, as its caller sees it."""

    def __init__(self, host: EnvHost, tag: str, env_type: str, env_config: Mapping[str, object]) -> None:
        cls = None if host.is_elsewhere else _playable(host.execution, tag, env_type, env_config)
        self.tag, self.env_type, self.env_config = tag, env_type, dict(env_config)
        self.running_s, self.waiting_s = 0.0, 0.0
        """Spent so far in calls, and in waiting for a free place."""
        self._host = host
        self._on_loop = cls is not None and is_async(cls)
        self._told_of_cuts = cls is None or hasattr(cls, "cut_off")
        self._resumes = None if cls is None else hasattr(cls, "resume")
        self._checked_step = partial(checked_step, show=host.show)
        self._executor: EnvExecutor | None = None
        self._playing = False

    async def reset(self, seed: int) -> Reset:
        """Begins an episode. Raises `EnvFailure`."""
        self._playing = True
        return await self._call("reset", seed, partial(checked_reset, show=self._host.show))

    async def has_resume(self) -> bool:
        """True if the environment's steps have effects outside of it, by its `resume`. Raises `EnvFailure`."""
        if self._resumes is None:
            self._resumes = await self._call("has_resume", None, bool)
        return self._resumes

    async def resume(self, past: Mapping[str, object]) -> Step | None:
        """Goes on with an episode. Returns the step of the action that was begun, if one was. Raises `EnvFailure`."""
        is_begun = past["begun"] is not None
        step = await self._call("resume", past, self._checked_step if is_begun else _nothing)
        self._playing = step is None or not (step[2] or step[3])
        return step

    async def step(self, action_text: str, reply: Reply | None = None) -> Step:
        """`reply`: what the text is read as, which is for those who stand between. Raises `EnvFailure`, and `RuntimeError` if
        there is no episode under way."""
        if not self._playing:
            raise RuntimeError("step() outside an episode: call reset(seed) first")
        step = await self._call("step", action_text, self._checked_step)
        self._playing = not (step[2] or step[3])
        return step

    async def cut_off(self) -> float:
        """The reward of an episode that ends for want of room, which its environment may give. Raises `EnvFailure`."""
        if not self._told_of_cuts or not self._playing:
            return 0.0
        self._playing = False
        return await self._call("cut_off", None, partial(checked_number, "cut_off"))

    async def close(self) -> None:
        """Gives the environment back; its process stays for the next."""
        self._host.forget(self)
        await self._give_up()

    @property
    def pid(self) -> int | None:
        """Id of the environment's process, if it has a process now."""
        return self._executor.pid if isinstance(self._executor, ProcessExecutor) else None

    async def _call(self, method: str, argument: object, checked: Callable[[object], T]) -> T:
        """Calls the environment when a place is free, and returns its checked answer. A failure, or the caller's cancellation,
        ends the episode and discards the instance."""
        place = self._host.place(self.tag)
        limit_s = self._host.step_timeout_s if method in ("step", "cut_off") else self._host.reset_timeout_s
        started = monotonic()
        if place is not None:
            await place.acquire()
        entered = monotonic()
        self.waiting_s += entered - started
        if self._executor is None:
            self._executor = self._host.executor(self.env_type, self.env_config, self._on_loop)
        try:
            return checked(await self._executor.call_env(method, argument, limit_s))
        except EnvFailure as failure:
            self._host.failures[failure.kind] += 1
            await self._give_up()
            raise EnvFailure(failure.kind, f"{self.env_type}.{method}: {failure.message}") from failure
        except asyncio.CancelledError:
            await self._give_up()
            raise
        finally:
            self.running_s += monotonic() - entered
            if place is not None:
                place.release()

    async def _give_up(self) -> None:
        executor, self._executor = self._executor, None
        self._playing = False
        if executor is not None:
            with suppress(EnvFailure):
                await executor.leave()


def _nothing(told: object) -> None:
    """Raises `EnvFailure`."""
    if told is not None:
        raise EnvFailure("exception", f"resume must return None where no action was begun, not {described(told)}")


def _playable(execution: EnvExecution, tag: str, env_type: str, env_config: Mapping[str, object]) -> type[object]:
    """Raises `ConfigError`."""
    cls = env_class(env_type, f"custom_envs.{tag}.env_type")
    problems = config_problems(cls, env_config, f"custom_envs.{tag}.env_config")
    if execution == "thread" and not is_thread_safe(cls):
        message = f"{env_type} uses state of the whole process, so its environments cannot share one as threads"
        problems.append(Problem(f"custom_envs.{tag}.execution", "thread", message, "use process"))
    if problems:
        raise ConfigError(problems)
    return cls
