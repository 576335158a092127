"""Rules of the names of validation sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from roll.core.configs.ppo import MAIN_SET
from roll.core.configs.problems import Problem

RESERVED = ("train", MAIN_SET)
"""Names of the tasks of training and of the first set."""


def set_names(names: Iterable[str]) -> Iterator[Problem]:
    """`names`: the keys of `validation_sets`."""
    for name in names:
        if name in RESERVED:
            yield Problem(f"validation_sets.{name}", name, "is the name of other tasks", "another name")
        elif not name or not name.isprintable() or {"/", "."} & {*name}:
            yield Problem("validation_sets", name, "is no name of a set", 'no "/", no ".", not empty')
