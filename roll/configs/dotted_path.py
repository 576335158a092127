"""The form of a name like my_package.my_module.MyClass, by which a configuration names a user's code."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

DOTTED_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")

Code: TypeAlias = str | Callable[..., Any]
"""A function or a class of a user's, by its dotted path; in Python also itself."""


def dotted_path(thing: object) -> str:
    """The name of a function or a class; of anything else that can be called, its text."""
    return f"{thing.__module__}.{thing.__qualname__}" if hasattr(thing, "__qualname__") else str(thing)
