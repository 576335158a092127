"""The adapter of verifiers, with task sets of its form instead of the package: what is asked, what is judged, what is refused.
The package itself: tests/envs_real (make test-envs)."""

import asyncio
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from roll.core.configs.problems import ConfigError
from roll.envs.check import check_env
from roll.envs.verifiers import TaskSet


@dataclass
class Record:
    """Whatever the package makes: what it was given."""

    given: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.given[name]


@dataclass
class Trace(Record):
    metrics: dict[str, float | None] = field(default_factory=dict)
    reward: float = 0.0


class Sum:
    NEEDS_CONTAINER = False

    def __init__(self, number: int, prompt: str | None = "") -> None:
        asked = f"{number} + 1 = ?" if prompt is not None else None
        self.key = f"sum-{number}"
        self.data = types.SimpleNamespace(system_prompt="Add.", prompt=asked, prompt_text=asked, answer=str(number + 1))

    @classmethod
    def toolsets(cls, config: Any) -> list[str]:
        return []

    async def score(self, trace: Trace) -> None:
        asked, answered = trace.nodes
        assert asked.message.content == self.data.prompt_text and (answered.parent, answered.sampled) == (0, True)
        assert (trace.task.type, trace.task.key) == ("Sum", self.key)
        trace.reward = float(answered.message.content == self.data.answer)
        trace.metrics = {"letters": len(answered.message.content), "unknown": None}


class Contained(Sum):
    NEEDS_CONTAINER = True


class WithTools(Sum):
    @classmethod
    def toolsets(cls, config: Any) -> list[str]:
        return ["a shell"]


class Unasked(Sum):
    def __init__(self, number: int) -> None:
        super().__init__(number, None)


KINDS = {"sums": Sum, "contained": Contained, "with_tools": WithTools, "unasked": Unasked}


def taskset_class(env_id: str) -> Any:
    kind = KINDS[env_id]

    class Set:
        def __init__(self, config: Any) -> None:
            self.config = types.SimpleNamespace(task=None, largest=config.get("largest", 5))

        @classmethod
        def toolsets(cls, config: Any) -> list[str]:
            return []

        @classmethod
        def task_type(cls) -> type[Sum]:
            return kind

        def take(self, count: int) -> Iterator[Sum]:
            yield from map(kind, range(min(count, self.config.largest)))

    return Set


def checked(mapping: dict[str, Any]) -> dict[str, Any]:
    assert mapping.keys() <= {"id", "largest"}, f"no such key: {sorted(mapping)[-1]}"
    return mapping


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("verifiers", "verifiers.v1", "verifiers.v1.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    v1, utils = sys.modules["verifiers.v1"], sys.modules["verifiers.v1.utils"]
    sys.modules["verifiers"].v1 = v1  # type: ignore[attr-defined]
    for name in ("UserMessage", "AssistantMessage", "TraceTask", "AgentInfo", "AgentConfig", "MessageNode"):
        setattr(v1, name, lambda **given: Record(given))
    v1.Trace = lambda **given: Trace(given)  # type: ignore[attr-defined]
    config_type = types.SimpleNamespace(model_validate=checked)
    utils.loaders = types.SimpleNamespace(  # type: ignore[attr-defined]
        taskset_class=taskset_class, taskset_config_type=lambda env_id: config_type
    )


def test_a_task_is_asked_once_and_judged_by_itself() -> None:
    async def main() -> None:
        env = TaskSet("sums", largest=3)
        assert await env.reset(7) == ("Add.\n\n1 + 1 = ?", {"state_key": "sum-1"}), "a seed names one of the three"
        shown, reward, terminated, truncated, info = await env.step("2")
        assert (shown, reward, terminated, truncated) == ("", 1.0, True, False)
        assert info == {"letters": 1, "action_is_valid": True, "action_is_effective": True}
        await env.reset(8)
        assert (await env.step("2"))[1] == 0.0

    asyncio.run(main())


def test_the_first_tasks_are_taken() -> None:
    assert {asyncio.run(TaskSet("sums", tasks=2).reset(seed))[0] for seed in range(9)} == {
        "Add.\n\n0 + 1 = ?",
        "Add.\n\n1 + 1 = ?",
    }


@pytest.mark.parametrize("env_id", ["contained", "with_tools", "unasked"])
def test_what_is_more_than_a_question_is_for_a_program(env_id: str) -> None:
    with pytest.raises(ConfigError, match="not one question and one answer; fix: env_type: program"):
        TaskSet(env_id)


def test_what_the_package_refuses_is_told_and_so_is_the_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="env_id = 'sums': verifiers refuses it: AssertionError: no such key: smallest"):
        TaskSet("sums", smallest=1)
    with pytest.raises(ConfigError, match="env_id = 'others': verifiers refuses it: KeyError"):
        TaskSet("others")
    monkeypatch.setitem(sys.modules, "verifiers.v1", None)
    with pytest.raises(ConfigError, match="roll env add verifiers"):
        TaskSet("sums")


def test_it_keeps_the_contract() -> None:
    report = check_env("verifiers", {"env_id": "sums"}, episodes=3)
    assert report.ok, report.errors
