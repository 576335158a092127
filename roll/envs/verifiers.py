"""Task sets of `verifiers` (0.4 on, its v1), each task asked once: the task's own rewards judge the answer. Tasks with tools, a
container or several turns are programs (`env_type: program`), for which verifiers has harnesses."""

from __future__ import annotations

from roll.core.configs.problems import ConfigError, Problem
from roll.core.errors import boundary
from roll.envs.environment import Reset, Step
from roll.envs.packages import importing


def env_ids() -> list[str]:
    """Task sets are packages of their own, which have no list."""
    return []


class TaskSet:
    def __init__(self, env_id: str, tasks: int = 1000, **config: object) -> None:
        """`env_id`: the task set's package, installed beside verifiers, or a module in the folder of the run. `tasks`: the first
        ones are taken; a seed names one. Other keys are the task set's configuration. Raises `ConfigError`."""
        with importing("verifiers"):
            import verifiers.v1 as package
            from verifiers.v1.utils import loaders
        self._package = package
        with boundary(
            lambda why: ConfigError([Problem("env_id", env_id, why, "a task set of verifiers that is installed here")]),
            "verifiers refuses it",
        ):
            cls = loaders.taskset_class(env_id)
            made = cls(loaders.taskset_config_type(env_id).model_validate({"id": env_id, **config}))
            self._tasks = list(made.take(tasks))
            tools = [*cls.toolsets(made.config), *cls.task_type().toolsets(made.config.task)]
        if not self._tasks or tools or any(task.NEEDS_CONTAINER or task.data.prompt is None for task in self._tasks):
            fix = "env_type: program plays it, with one of verifiers' harnesses as its command"
            raise ConfigError([Problem("env_id", env_id, "has tasks that are not one question and one answer", fix)])
        self.instructions = ""  # each task brings its own

    async def reset(self, seed: int) -> Reset:
        self._task = self._tasks[seed % len(self._tasks)]
        data = self._task.data
        return "\n\n".join(filter(None, (data.system_prompt, data.prompt_text))), {"state_key": self._task.key}

    async def step(self, action_text: str) -> Step:
        package, task = self._package, self._task
        asked = package.UserMessage(content=task.data.prompt_text)
        answered = package.AssistantMessage(content=action_text)
        trace = package.Trace(
            task=package.TraceTask(type=type(task).__name__, data=task.data, key=task.key),
            agent=package.AgentInfo(config=package.AgentConfig()),
            nodes=[package.MessageNode(message=asked), package.MessageNode(parent=0, message=answered, sampled=True)],
        )
        await task.score(trace)
        metrics = {name: value for name, value in trace.metrics.items() if value is not None}
        return "", float(trace.reward), True, False, {**metrics, "action_is_valid": True, "action_is_effective": True}

    def close(self) -> None: ...
