"""`strategy_config` of an engine that brings options of its own, hundreds of them: handed on as it stands.

The names are the installed engine's, so they cannot be checked here; `prepare` does, before any worker starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class EngineArguments:
    given: dict[str, Any]

    @property
    def tensor_parallel_size(self) -> int:
        """Devices of one engine."""
        size = self.given.get("tensor_parallel_size", 1)
        return size if isinstance(size, int) else 1
