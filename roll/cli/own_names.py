"""Names of the user's own code, looked for without an import: the module, and what its source says that it has."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import NamedTuple

from roll.core.configs.dotted_path import module_spec
from roll.core.configs.problems import did_you_mean

MOST_LISTED = 6
"""Names of a module that are listed."""
_DYNAMIC = {"globals", "vars", "exec", "setattr", "modules", "__dict__"}
"""Names in a source with which a module may have others than it says."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class _Names(NamedTuple):
    bound: set[str]
    own: list[str]
    """The functions and classes that are made there, without those that begin with an underscore."""


def objection(path: str, folder: str) -> str:
    """Returns why an import of `package.module.Name` fails in `folder`; empty if its source does not show that it does."""
    *packages, name = path.replace(":", ".").split(".")
    module = ".".join(packages)
    found = [spec for folders in ([folder], sys.path) if (spec := module_spec(packages, folders)) is not None]
    if found:
        told = [_of_module(spec, module, name) for spec in found]
        return told[0] if all(told) else ""
    others = (finder for finder in sys.meta_path if finder is not PathFinder)  # of editable installs
    if any(finder.find_spec(packages[0], None) is not None for finder in others):
        return ""
    return f"there is no module {module} in {folder}, in PYTHONPATH or among the installed packages"


def _of_module(spec: ModuleSpec, module: str, name: str) -> str:
    inside: Sequence[str] = spec.submodule_search_locations or []
    source = Path(spec.origin or inside[0])
    try:
        names = _Names(set(), []) if spec.origin is None else _names(source)
    except SyntaxError as error:
        return f"{source} is not Python: {error.msg} in line {error.lineno}"
    except (OSError, ValueError, RecursionError, MemoryError):
        return ""
    if names is not None and name in names.bound:
        return ""
    if inside and module_spec([name], inside) is not None:
        return f"{module}.{name} is a module: name a class or a function of it, {module}.{name}.<name>"
    if names is None:
        return ""
    listed = ", ".join(names.own[:MOST_LISTED]) + (", ..." if len(names.own) > MOST_LISTED else "")
    near = did_you_mean(name, names.bound, otherwise=listed and f"it has {listed}")
    return f"{source} has no {name}" + (f"; {near}" if near else "")


def _names(source: Path) -> _Names | None:
    """Returns the names that a module binds; None if it may have more than can be read. Raises `SyntaxError` and others."""
    if source.suffix != ".py":
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source.read_bytes())
    if any(each in _DYNAMIC for node in ast.walk(tree) for each in _named(node)):
        return None
    bound = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    own = []
    for node in _run_by(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
            own += [] if node.name.startswith("_") else [node.name]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            if any(each.name == "*" for each in node.names):
                return None
            bound |= {each.asname or each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            bound.add(node.name)
    return None if "__getattr__" in bound else _Names(bound, own)


def _named(node: ast.AST) -> Iterator[str]:
    """Yields the name that an expression asks for."""
    yield from (found for field in ("id", "attr") if isinstance(found := getattr(node, field, None), str))


def _run_by(node: ast.AST) -> Iterator[ast.AST]:
    """Yields all that an import runs, without the insides of functions and classes."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _SCOPES):
            yield from _run_by(child)
