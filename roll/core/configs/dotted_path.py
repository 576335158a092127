"""Names and imports users' code by its dotted path, such as my_package.my_module.MyClass."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, TypeAlias

from roll.core.errors import boundary

DOTTED_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")

Code: TypeAlias = str | Callable[..., Any]
"""A user's function or class, given by its dotted path, or in Python as the object itself."""


def dotted_path(thing: object) -> str:
    """Returns the dotted path of a function or a class; for other callables, `str` of them."""
    return f"{thing.__module__}.{thing.__qualname__}" if hasattr(thing, "__qualname__") else str(thing)


def full_path(name: str, paths: Iterable[str], otherwise: str) -> str:
    """Returns the first of `paths` whose last part is `name`, or `otherwise`."""
    return next((path for path in paths if path.rpartition(".")[2] == name), otherwise)


def named_object(path: str) -> Any:
    """Imports the object at `package.module.Name` or `package.module:Name`. Raises the errors of the import."""
    module, _, name = path.replace(":", ".").rpartition(".")
    return getattr(importlib.import_module(module), name)


def import_object(path: Code) -> Any:
    """Imports an object by its path; an object is returned unchanged. Raises `ValueError` with the fault of the path."""
    if not isinstance(path, str):
        return path
    if "." not in path:
        raise ValueError(f"'{path}' is not a dotted path like package.module.Name")
    with boundary(ValueError, f"'{path}' cannot be imported", say=partial(import_failure, path)):
        return named_object(path)


def import_failure(path: str, error: BaseException) -> str:
    """Explains a failed import: the folders searched for the module, the names that the module has, or its own error."""
    *packages, name = path.replace(":", ".").split(".")
    module = ".".join(packages)
    if packages and (hidden := _hidden(packages[0])):
        return f"{error}; {hidden}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        if not f"{module}.".startswith(f"{error.name}."):
            return f"{error}, which {module} imports"
        nearer = (packages[i:] for i in range(1, len(packages)))
        there = next((".".join(rest) for rest in nearer if module_spec(rest, _own_folders())), "")
        instead = f"; {there} is there: write {there}.{name}" if there else ""
        return f"{error}; looked for in {', '.join(_own_folders())} and among the installed packages{instead}"
    if isinstance(error, AttributeError) and error.obj is not None and error.obj is sys.modules.get(module):
        own = [each for each, thing in vars(error.obj).items() if getattr(thing, "__module__", "") == module and each[0] != "_"]
        return f"{error}; it has {', '.join(own)}" if own else str(error)
    return str(error) if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"


def _hidden(name: str) -> str:
    """Names a module of Python, or of a package, that hides the user's own; empty if none does."""
    loaded = getattr(sys.modules.get(name), "__file__", None)
    own = PathFinder.find_spec(name, _own_folders()) if name in sys.modules else None
    places = [] if own is None else [own.origin, *(own.submodule_search_locations or ())]
    if not any(places) or (loaded is not None and any(place and loaded.startswith(place) for place in places)):
        return ""
    whose = "Python's own" if name in sys.stdlib_module_names else f"another one, {loaded}"
    return f"the module {name} is {whose}, which hides {next(filter(None, places))}: give the file another name"


def module_spec(packages: Sequence[str], folders: Sequence[str]) -> ModuleSpec | None:
    """Finds a module in the folders without an import. `packages`: its dotted name in parts."""
    spec: ModuleSpec | None = None
    for i in range(len(packages)):
        spec = PathFinder.find_spec(packages[i], folders)  # a dotted name of a folder without __init__.py asks for its parent
        if spec is None or spec.submodule_search_locations is None:
            return spec if i == len(packages) - 1 else None
        folders = [*spec.submodule_search_locations]
    return spec


def _own_folders() -> list[str]:
    """Returns Python's search folders for the user's own code: the start folder and those of PYTHONPATH."""
    return [folder for folder in dict.fromkeys(sys.path) if folder and not folder.startswith((sys.prefix, sys.base_prefix))]
