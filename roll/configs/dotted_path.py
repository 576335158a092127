"""A user's code by its dotted path, my_package.my_module.MyClass: the form, the name, the import."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from roll.errors import boundary

DOTTED_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")

Code: TypeAlias = str | Callable[..., Any]
"""A function or a class of a user's, by its dotted path; in Python also itself."""


def dotted_path(thing: object) -> str:
    """The name of a function or a class; of anything else that can be called, its text."""
    return f"{thing.__module__}.{thing.__qualname__}" if hasattr(thing, "__qualname__") else str(thing)


def named_object(path: str) -> Any:
    """What `package.module.Name` or `package.module:Name` names. Raises whatever the import raises."""
    module, _, name = path.replace(":", ".").rpartition(".")
    return getattr(importlib.import_module(module), name)


def import_object(path: Code) -> Any:
    """As `named_object`; what was given itself is returned. Raises `ValueError`, which says what is wrong with the path."""
    if not isinstance(path, str):
        return path
    if "." not in path:
        raise ValueError(f"'{path}' is not a dotted path like package.module.Name")
    with boundary(ValueError, f"'{path}' cannot be imported", say=str):
        return named_object(path)
