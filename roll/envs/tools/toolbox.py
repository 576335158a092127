"""The tools of a tag: made from the configuration, called with a time limit."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from roll.chat.conversation import Message, ToolCall, assistant
from roll.chat.dialogue import Dialogue
from roll.core.configs.dotted_path import import_failure, named_object
from roll.core.configs.problems import Collector, ConfigError, Problem, did_you_mean
from roll.core.configs.tools import ToolWrapperConfig
from roll.core.data.untrusted import complaint
from roll.core.errors import TemplateRefusal, ToolFailed, boundary, reason
from roll.envs.tools.tool import Tool, Toolset

BUILT_IN = {
    name: f"roll.envs.tools.{path}"
    for name, path in {
        "python_code": "python_code.PythonCode",
        "calculator": "calculator.Calculator",
        "search": "search.Search",
        "mcp": "mcp_server.McpServer",
    }.items()
}
TOLD = "\u27e6told\u27e7"
_OTHER = {True: "call_format: text", False: "call_format: template, or another model's template"}
LONGEST = 16_000
"""Most characters of a result; longer ones are cut."""


@dataclass(frozen=True, slots=True)
class Used:
    """A call that was made."""

    text: str
    """The text for the policy."""
    failed: bool


class Toolbox:
    def __init__(self, wrapper: ToolWrapperConfig, key: str, limit_s: float) -> None:
        """`key`: of the wrapper in the configuration. `limit_s`: of a call. Raises `ConfigError`."""
        self.wrapper, self._key, self._limit_s = wrapper, key, limit_s
        self._parts: list[Tool | Toolset] = []
        self._of_sets: list[Tool] = []
        problems: list[Problem] = []
        for i, config in enumerate(wrapper.tool_configs):
            where = f"{key}.tool_configs.{i}"
            try:
                self._parts.append(_made(config.tool_id, config.tool_args, where))
            except ConfigError as error:
                problems += error.problems
        problems += self._doubled()
        if problems:
            raise ConfigError(problems)

    @property
    def tools(self) -> list[Tool]:
        """Tools, including a server's once it has started."""
        return [*(part for part in self._parts if isinstance(part, Tool)), *self._of_sets]

    async def start(self) -> None:
        """The last call before the first `run`. Raises `ConfigError`."""
        self._of_sets = []
        for i, part in enumerate(self._parts):
            if isinstance(part, Toolset):
                try:
                    self._of_sets += await part.start()
                except ToolFailed as failure:
                    where = f"{self._key}.tool_configs.{i}"
                    raise ConfigError(
                        [Problem(where, self.wrapper.tool_configs[i].tool_id, str(failure), "mend its tool_args")]
                    ) from failure
        if doubled := self._doubled():
            raise ConfigError(doubled)

    def _doubled(self) -> list[Problem]:
        names = [tool.name for tool in self.tools]
        doubled = next((name for name in names if names.count(name) > 1), None)
        return (
            []
            if doubled is None
            else [Problem(f"{self._key}.tool_configs", doubled, "names two tools alike", "keep one of them")]
        )

    def look_around(self, key: str, collect: Collector) -> list[str]:
        """Returns conditions of this machine that make tools weaker; those that keep one from working are collected."""
        found: list[str] = []
        for i, tool in enumerate(self._parts):
            if isinstance(tool, Toolset):
                continue
            found += collect(f"{key}.tool_configs.{i}.tool_id", tool.name, tool.look_around, "") or ()
        return found

    def unshown(self, dialogue: Dialogue, key: str) -> list[Problem]:
        """Returns problems of a chat template that does not show the tools, their calls, or their results."""
        begin: list[Message] = [{"role": "user", "content": "."}]
        by_template = self.wrapper.call_format == "template"
        calls = [ToolCall("1", tool.name, {"x": 1}) for tool in self.tools] if by_template else []
        told: list[Message] = [{"role": "tool", "content": TOLD} for _ in calls or "."]
        schemas = [tool.schema for tool in self.tools] if by_template else []
        try:
            text = dialogue.text([*begin, assistant("", calls), *told], schemas)
        except TemplateRefusal as refusal:
            return [Problem(f"{key}.call_format", self.wrapper.call_format, str(refusal), _OTHER[by_template])]
        if TOLD not in text or not all(tool.name in text for tool in self.tools if by_template):
            message = f"the model's chat template does not show {'tools' if by_template else 'what tools tell'}"
            return [Problem(f"{key}.call_format", self.wrapper.call_format, message, _OTHER[by_template])]
        return []

    async def run(self, tool: Tool, arguments: Mapping[str, Any]) -> Used:
        """Runs a tool. A fault of it costs its call at most."""
        try:
            async with asyncio.timeout(self._limit_s):
                with boundary(ToolFailed, tool.name, (ToolFailed, TimeoutError), reason):
                    text = str(await tool.run(arguments))
                    if wrong := complaint(text):
                        raise ToolFailed(f"{tool.name}: its result {wrong}")
                    return Used(shortened(text), False)
        except ToolFailed as failure:
            return Used(shortened(str(failure)), True)
        except TimeoutError:
            return Used(f"{tool.name} has given no result within {self._limit_s:g} s", True)

    async def close(self) -> None:
        await asyncio.gather(*(part.close() for part in self._parts))

    def named(self, name: str) -> Tool | None:
        return next((tool for tool in self.tools if tool.name == name), None)


def shortened(text: str) -> str:
    more = len(text) - LONGEST
    return text if more <= 0 else f"{text[:LONGEST]}... ({more:,} characters more)"


def _made(tool_id: str, arguments: Mapping[str, Any], key: str) -> Tool | Toolset:
    """Raises `ConfigError`."""
    path = BUILT_IN.get(tool_id, tool_id)
    if "." not in path:
        raise ConfigError([Problem(f"{key}.tool_id", tool_id, "is no tool", did_you_mean(tool_id, BUILT_IN) or _known())])
    fix = "package.module.Class, importable here"
    say = partial(import_failure, path)
    with boundary(lambda why: ConfigError([Problem(f"{key}.tool_id", tool_id, why, fix)]), "cannot be imported", say=say):
        cls = named_object(path)
    if not (isinstance(cls, type) and issubclass(cls, Tool | Toolset)):
        raise ConfigError([Problem(f"{key}.tool_id", tool_id, "is no class that derives from roll.Tool", _known())])
    parameters = inspect.signature(cls).parameters
    if unknown := sorted(arguments.keys() - parameters.keys()):
        hint = did_you_mean(unknown[0], parameters) or f"known: {', '.join(parameters) or 'none'}"
        raise ConfigError([Problem(f"{key}.tool_args.{unknown[0]}", arguments[unknown[0]], "is no argument of the tool", hint)])
    with boundary(
        lambda why: ConfigError(
            [Problem(f"{key}.tool_args", dict(arguments), why, f"as it takes them: {tool_id}{inspect.signature(cls)}")]
        ),
        "",
        (ConfigError,),
    ):
        tool: Tool | Toolset = cls(**arguments)
    return tool


def _known() -> str:
    return f"{', '.join(BUILT_IN)}, or the dotted path of a class"


def explained(tools: Sequence[Tool]) -> str:
    """Explains calls by text, for the first observation."""
    each = "\n".join(tool.instructions for tool in tools)
    return f"Available tools:\n{each}" if len(tools) > 1 else each
