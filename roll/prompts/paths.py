"""Relative paths of a configuration: they begin in the folder in which the run was started, for each process that opens them.

A field that names a file or a folder says of which kind it is, by a key of `ABSOLUTE`: `option(..., path="model")`. Arguments of
a user's own code (`reward_args`, `env_config`) are not read here; its workers stand in the same folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from roll.core.configs.base import PRETRAIN
from roll.prompts.hub import is_hub_name

BEST = "best"
"""The best checkpoint of a run: the name of the link to it, and where checkpoints are named."""

C = TypeVar("C")

_SQLITE = re.compile(r"(?P<driver>sqlite(\+\w+)?:///)(?P<file>(?!/|:memory:|file:)[^?]+)(?P<rest>.*)")


def absolute(config: C) -> C:
    """The configuration with absolute paths."""
    return _made(config, ABSOLUTE)


def from_home(config: C) -> C:
    """The configuration with the home folder for `~/`, which nobody else replaces: not in a file, nor in an override."""
    return _made(config, dict.fromkeys(ABSOLUTE, _from_home))


def _made(config: C, makers: Mapping[str, Callable[[Any], Any]]) -> C:
    changed = {}
    for item in fields(config):  # type: ignore[arg-type]
        value: Any = getattr(config, item.name)
        make = makers[item.metadata["path"]] if "path" in item.metadata else partial(_inside, makers=makers)
        made = [make(each) for each in value] if isinstance(value, list) else make(value)
        if made != value:
            changed[item.name] = made
    return replace(config, **changed) if changed else config  # type: ignore[type-var]


def as_written(settled: Any, resolved: Any, written: Any) -> Any:
    """Returns plain values of a configuration in the form that the user gave them: `resolved` is `written` made absolute, and
    `settled` is the run's version of that."""
    if isinstance(settled, dict) and isinstance(resolved, dict) and isinstance(written, dict):
        same = resolved.keys() & written.keys()
        return {key: as_written(v, resolved[key], written[key]) if key in same else v for key, v in settled.items()}
    return written if settled == resolved else settled


def _path(value: Any) -> Any:
    return str(Path(value).absolute()) if isinstance(value, str) and value else value


def _database(value: Any) -> Any:
    found = _SQLITE.fullmatch(value) if isinstance(value, str) else None
    return value if found is None else f"{found['driver']}{_path(found['file'])}{found['rest']}"


def _engine(options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "python": _interpreter(options["python"])} if "python" in options else options


def _interpreter(value: Any) -> Any:
    """One without a folder is looked for on the PATH."""
    return _path(value) if isinstance(value, str) and "/" in value else value


def _from_home(value: Any) -> Any:
    return str(Path(value).expanduser()) if isinstance(value, str) and value.startswith("~/") else value


def _inside(value: Any, makers: Mapping[str, Callable[[Any], Any]]) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _made(value, makers)
    return {name: _inside(each, makers) for name, each in value.items()} if isinstance(value, dict) else value


ABSOLUTE: dict[str, Callable[[Any], Any]] = {
    "file": _path,
    "model": lambda value: value if isinstance(value, str) and is_hub_name(value) else _path(value),
    "data set": lambda value: _path(value) if isinstance(value, str) and Path(value).exists() else value,  # else the hub's
    "checkpoint": lambda value: value if value in ("auto", PRETRAIN, BEST) else _path(value),
    "database": _database,
    "interpreter": _interpreter,
    "options of an engine": _engine,
}
"""Kind of a field -> the function that makes its value absolute."""
