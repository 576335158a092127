"""Tasksets of the package `verifiers` (github.com/PrimeIntellect-ai/verifiers, release 0.4 or later), one answer an episode.

There, the agent is a program of its own (a *harness*) that calls a model server, and the framework runs the episode; an
environment that is stepped from outside does not exist. What can be played here is the part that is independent of it: a taskset
whose tasks have a prompt and score one reply. Refused by name: tasksets that bring their own environment, tools or users, or need
a container, and rewards that look into one.
"""

from __future__ import annotations

import inspect
from itertools import islice
from typing import Any

from roll.configs.problems import ConfigError, Problem
from roll.errors import boundary
from roll.rollout.environment import Reset, Step


class VerifiersEnv:
    def __init__(
        self, taskset: str, taskset_args: dict[str, object] | None = None, max_tasks: int = 10_000, success_reward: float = 1.0
    ) -> None:
        """`taskset`: name of an installed taskset package. `taskset_args`: its configuration. `max_tasks`: tasks that are loaded;
        seeds are spread over them. `success_reward`: an answer with at least this reward is a success. Raises `ConfigError`."""
        try:
            import verifiers.v1 as vf
            from verifiers.v1.envs.single_agent.env import SingleAgentEnv
            from verifiers.v1.utils import loaders
        except ImportError as error:
            missing = (error.name or "").split(".")[0]
            fix = "pip install 'verifiers>=0.4'" if missing in ("verifiers", "") else f"pip install {missing}"
            raise ConfigError(
                [Problem("taskset", taskset, f"needs the package verifiers, 0.4 or later ({error})", fix)]
            ) from error
        if max_tasks < 1:
            raise ConfigError([Problem("max_tasks", max_tasks, "must be >= 1")])
        self._vf = vf
        with boundary(lambda why: ConfigError([Problem("taskset", taskset, why)]), "verifiers refuses it"):
            config = loaders.taskset_config_type(taskset).model_validate({**(taskset_args or {}), "id": taskset})
            loaded = loaders.load_taskset(config)
            own_environment = loaders.environment_class(taskset) is not SingleAgentEnv
            self._tasks = list(islice(loaded, max_tasks))
        flaw = self._flaw(loaded, own_environment)
        if flaw:
            raise ConfigError([Problem("taskset", taskset, flaw, "only tasks of one prompt and one answer can be played here")])
        self.success_reward = success_reward
        self.instructions = self._tasks[0].data.system_prompt or ""
        self._task: Any = None

    def _flaw(self, taskset: Any, own_environment: bool) -> str:
        if not self._tasks:
            return "has no tasks"
        kind = type(self._tasks[0])
        if own_environment:
            return "brings an environment of its own"
        if kind.NEEDS_CONTAINER:
            return "needs a container"
        if type(taskset).toolsets(taskset.config) or kind.toolsets(self._tasks[0].config):
            return "brings tools"
        if any(task.data.prompt is None for task in self._tasks):
            return "has tasks without a prompt"
        if any(_needs_runtime(function) for function in self._tasks[0].hooks("reward")):
            return "has rewards that look into a container"
        return ""

    async def reset(self, seed: int) -> Reset:
        self._task = self._tasks[seed % len(self._tasks)]
        prompt: str = self._task.data.prompt_text
        return prompt, {"state_key": f"{self._task.key} asked", "suffix": ""}

    async def step(self, action_text: str) -> Step:
        """Raises what the task's scoring raises, `LookupError` if there is no reward, and `RuntimeError` without an episode."""
        task, self._task = self._task, None
        if task is None:
            raise RuntimeError("step() outside an episode: call reset(seed) first")
        trace = self._trace(task, action_text)
        await task.score(trace)
        rewards = {name: reward for name, reward in trace.rewards.items() if reward is not None}
        if not rewards:
            raise LookupError(f"task {type(task).__name__} gave no reward")
        metrics = {name: value for name, value in trace.metrics.items() if value is not None}
        info = {
            **metrics,
            "action_is_valid": True,  # verifiers has no notion of an unreadable answer
            "action_is_effective": True,
            "state_key": f"{task.key} answered",
            "suffix": "",
            "success": trace.reward >= self.success_reward,
        }
        return "", float(trace.reward), True, False, info

    def close(self) -> None:
        self._task = None

    def _trace(self, task: Any, reply: str) -> Any:
        """The record that reward functions read, as one request and its answer would have left it."""
        vf = self._vf
        from verifiers.v1.graph import prepare_turn
        from verifiers.v1.state import state_cls
        from verifiers.v1.trace import AgentInfo, TraceTask

        trace = vf.Trace(
            task=TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
            agent=AgentInfo(config=vf.AgentConfig()),
            state=state_cls(type(task))(),
        )
        prompt = task.data.prompt
        messages = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt)
        if task.data.system_prompt:
            messages.insert(0, vf.SystemMessage(content=task.data.system_prompt))
        message = vf.AssistantMessage(content=reply)
        prepare_turn(trace, messages).commit(vf.Response(id="", created=0, model="", message=message, finish_reason="stop"))
        return trace


def _needs_runtime(function: Any) -> bool:
    """Whether the function needs a runtime, by the rule of verifiers: without a runtime, such a function is left out of the
    score."""
    parameter = inspect.signature(function).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty
