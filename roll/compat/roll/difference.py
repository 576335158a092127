"""What one statement about a key with another meaning than in ROLL is, and how it looks at a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from roll.configs.agentic import AgenticConfig
from roll.configs.ppo import PPOConfig

Written = Mapping[str, Any]
"""The file, before anything was read as something else."""


@dataclass(frozen=True, slots=True)
class Difference:
    key: str
    """For the page; `<name>` is a name of the user's own."""
    when: str
    """The files that it is about, as text for the page."""
    note: str
    """What it means in ROLL, and what here."""
    keys: Callable[[PPOConfig, Written], Iterable[str]]
    """The keys of a file that it is about; none if it is not about the file."""


def if_(key: str, holds: Callable[[Any], bool]) -> Callable[[PPOConfig, Written], Iterator[str]]:
    """The key, for configurations that the condition holds for."""

    def keys(config: PPOConfig, written: Written) -> Iterator[str]:
        if holds(config):
            yield key

    return keys


def agentic(config: PPOConfig) -> bool:
    return isinstance(config, AgenticConfig)
