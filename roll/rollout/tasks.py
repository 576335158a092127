"""The tasks of a run, as the owner of its groups draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from roll.data.sample import Prompt, SampleGroup
from roll.rollout.changes import Closed


class TaskSource(Protocol):
    """The tasks of a run: infinite, deterministic, resumable."""

    def next(self) -> Prompt: ...

    def ended(self, group: SampleGroup) -> None:
        """The group of a task has met its fate; its samples may have rewards. For sources that learn from them."""
        return

    def settle(self) -> None:
        """A step is trained: what was learnt until now counts from here on."""
        return

    def cursor(self, outstanding: Sequence[Prompt] = ()) -> dict[str, Any]:
        """The position, as plain JSON. `outstanding`: tasks that were served and are to be served again after `restore`."""

    def restore(self, cursor: Mapping[str, Any]) -> None:
        """Continues from a `cursor()`. Raises `ValueError` if it speaks of another seed or other tasks."""


class NoTasks(TaskSource):
    """Those of a process that rolls nothing out."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def next(self) -> Prompt:
        raise Closed

    def cursor(self, outstanding: Sequence[Prompt] = ()) -> dict[str, Any]:
        return {"seed": self._seed, "served": {}, "returned": []}

    def restore(self, cursor: Mapping[str, Any]) -> None:
        """There is no position."""
