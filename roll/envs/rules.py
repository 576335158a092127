"""The rules of an environment, as its author wrote them."""

from __future__ import annotations

import inspect
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

INSTALLED = {"site-packages", "dist-packages"}


def instructions(env: Any) -> Any:
    """Its attribute; where there is none, the docstring of its class; else None."""
    own = getattr(env, "instructions", None)
    return docstring(type(env)) if own is None else own


def docstring(cls: type[Any], named: bool = True) -> str | None:
    """A class's own docstring. `named`: the user has named the class; that of an installed package which was found otherwise is
    written for programmers."""
    text = cls.__dict__.get("__doc__") or ""
    made = is_dataclass(cls) and text.startswith(f"{cls.__name__}(")  # by `dataclass` itself
    return None if made or not text.strip() or not (named or _is_own(cls)) else inspect.cleandoc(text)


def _is_own(cls: type[Any]) -> bool:
    try:
        return not INSTALLED & set(Path(inspect.getfile(cls)).parts)
    except (TypeError, OSError):  # it has no file
        return True
