"""A tool: what it is called, what it takes, and how an answer calls it in words.

One of a user's own derives from `Tool`, and is named by its dotted path. The keys of `tool_args` are its constructor's arguments.
It is made once for all episodes of a coordinator, side by side, so what it keeps is everybody's."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from roll.chat.conversation import Message
from roll.core.data.untrusted import complaint
from roll.core.errors import ToolFailed


class Tool(ABC):
    name: str
    description: str
    """The tool's purpose, for the model."""
    parameters: Mapping[str, Any]
    """JSON schema of the arguments, an object."""
    patterns: Sequence[str] = ()
    """Regular expressions whose first group is the text for the tool; none: <name>...</name>."""
    stands_alone = False
    """True if its result is said as it is, without its name."""

    @property
    def instructions(self) -> str:
        """Returns instructions to call it by text, for the first observation."""
        handed = self._only_text or f"JSON of {json.dumps(dict(self.parameters.get('properties', {})))}"
        return f"{self.description} Write <{self.name}>{handed}</{self.name}> to use it."

    @abstractmethod
    async def run(self, arguments: Mapping[str, Any]) -> str:
        """The result. Raises `ToolFailed` with what the policy is told, and whatever else: all of it is an observation. It is
        cancelled at the time limit of a step."""

    async def close(self) -> None:  # noqa: B027
        """Gives back its resources."""

    def look_around(self) -> Sequence[str]:
        """Returns conditions of this machine that make it weaker, before any worker starts. Raises `ValueError` if it cannot work
        here."""
        return ()

    @property
    def schema(self) -> Message:
        """The form that chat templates show."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    def read(self, text: str) -> tuple[int, str] | None:
        """Returns the place of a text's first call, and the text handed over; None without a call."""
        marks = self.patterns or (f"<{re.escape(self.name)}>(.*?)</{re.escape(self.name)}>",)
        found = [match for mark in marks if (match := re.search(mark, text, re.DOTALL))]
        first = min(found, key=lambda match: match.end(), default=None)
        return None if first is None else (first.start(), (first.group(1) or "").strip())

    def arguments_of(self, handed: str) -> Mapping[str, Any]:
        """Returns the arguments handed over by a text: itself, if the tool takes a text, else JSON. Raises `ToolFailed`."""
        if name := self._only_text:
            return {name: handed}
        try:
            given = json.loads(handed)
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict) or complaint(given):
            raise ToolFailed(f"{self.name} takes a JSON object, and {handed[:200]!r} is none")
        return given

    @property
    def _only_text(self) -> str:
        """The name of the argument, if there is one and it is a text."""
        properties = self.parameters.get("properties", {})
        ((name, schema),) = properties.items() if len(properties) == 1 else (("", {}),)
        return name if schema.get("type") == "string" else ""


class Toolset(ABC):
    """Several tools, known once they are asked for."""

    @abstractmethod
    async def start(self) -> Sequence[Tool]:
        """Raises `ToolFailed`."""

    @abstractmethod
    async def close(self) -> None: ...


def text_parameter(name: str, description: str) -> dict[str, Any]:
    """Schema of one argument that is a text."""
    return {"type": "object", "properties": {name: {"type": "string", "description": description}}, "required": [name]}


def text_argument(arguments: Mapping[str, Any], name: str) -> str:
    """Raises `ToolFailed`."""
    value = arguments.get(name)
    if not isinstance(value, str) or len(arguments) > 1:
        raise ToolFailed(f"it takes {name}, a text, and nothing else")
    return value
