"""The tasks of a run, as the owner of its groups draws them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from roll.core.configs.plain import JsonMapping, JsonObject
from roll.core.data.sample import Prompt, SampleGroup
from roll.core.errors import Closed


class TaskSource(Protocol):
    """The tasks of a run: infinite, deterministic, resumable."""

    def next(self) -> Prompt: ...

    def ended(self, group: SampleGroup) -> None:
        """Called when the group of a task has ended; its samples may have rewards. For sources that learn from them."""
        return

    def settle(self) -> None:
        """Makes learning so far effective, after a trained step."""
        return

    def metrics(self) -> dict[str, float]:
        """Returns the figures of the source's learning, for the metrics of each step."""
        return {}

    @property
    def unserved(self) -> dict[str, dict[str, int]]:
        """Tasks left out, by domain and epoch."""
        return {}

    def cursor(self, outstanding: Sequence[Prompt] = ()) -> JsonObject:
        """Returns the position as JSON. `outstanding`: served tasks that are to be served again after `restore`."""

    def restore(self, cursor: JsonMapping) -> None:
        """Continues from a `cursor()`. Raises `ValueError` if it speaks of another seed or other tasks."""


class NoTasks(TaskSource):
    """Tasks of a process that rolls nothing out."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def next(self) -> Prompt:
        raise Closed

    def cursor(self, outstanding: Sequence[Prompt] = ()) -> JsonObject:
        return {"seed": self._seed, "served": {}, "returned": []}

    def restore(self, cursor: JsonMapping) -> None:
        """There is no position."""
