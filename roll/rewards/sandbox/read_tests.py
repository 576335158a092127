"""What a test's code asks of a solution, and whether it asks anything. Pure; the code is read, not run.

A test takes its own tools from Python: were a solution's `abs` or `sorted` in its way, the solution would judge itself. Yet tasks
ask for functions that have names of Python's, such as `sum` or `median`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from roll.errors import boundary

TOOLS = frozenset(
    (
        *("abs", "all", "any", "callable", "dir", "format", "getattr", "hasattr", "hash", "id", "isinstance", "issubclass"),
        *("iter", "len", "next", "print", "repr", "round", "setattr", "sorted", "vars", "isclose", "isfinite", "isinf"),
        *("isnan", "copy", "deepcopy", "fabs", "dumps", "loads"),
    )
)
"""Functions of Python's that tests use, and tasks do not ask for."""


def tests_something(test: str, calls: str) -> bool:
    """Whether something is asserted, and something runs it. `calls`: what check() gets, if anything. Raises `ValueError` for what
    is no Python, and for tests that only a framework would run."""
    with boundary(ValueError, "a test is no Python"):
        tree = ast.parse(test)
    asserts = any(map(_asserts, ast.walk(tree)))
    if asserts and any(isinstance(each, ast.ClassDef) and _has_tests(each) for each in tree.body):
        raise ValueError("its tests are methods of a class: only functions test_... are run")
    return asserts and any(_runs(each, calls) for each in tree.body)


def _asserts(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr.startswith(("assert", "raises", "fail"))
    return isinstance(node, ast.Assert | ast.Raise)


def _has_tests(cls: ast.ClassDef) -> bool:
    return any(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test") for each in cls.body)


def _runs(statement: ast.stmt, calls: str) -> bool:
    if isinstance(statement, ast.FunctionDef):
        return statement.name.startswith("test") or (statement.name == "check" and bool(calls))
    if isinstance(statement, ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
        return False
    if isinstance(statement, ast.If) and "__name__" in _loaded(statement.test):  # it is "tests"
        return False
    return any(isinstance(node, ast.Assert | ast.Raise | ast.Call) for node in ast.walk(statement))


def asked_of_solution(test: str, known: Mapping[str, object], calls: str) -> frozenset[str]:
    """Those of Python's names that the test takes from the solution, which has to define one of them, if there are any; of other
    names there is no doubt. `known`: Python's names and what they stand for. Raises `SyntaxError`, and `ValueError` if the test
    asks nothing of the solution."""
    if calls:
        return frozenset({calls})
    tree = ast.parse(test)
    bound = set(bound_in(tree))
    if (_loaded(tree) - bound - known.keys()) or _imports_solution(tree):
        return frozenset()
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    mine = {name for name in called - bound - TOOLS if name in known}
    classes = {name for name in mine if isinstance(known[name], type)}
    builtin = {name for name in mine if getattr(known[name], "__module__", "") == "builtins"}
    for found in (mine - classes - builtin, mine - classes, classes - builtin):
        if found:
            return frozenset(found)
    raise ValueError("a test names nothing that a solution would define")


def helpers_in(test: str, calls: str, known: Iterable[str]) -> frozenset[str]:
    """What a test takes from elsewhere besides the function that it gets as an argument: tools, which no solution may bring.
    Classes are no tools: values have to be of one."""
    tree = ast.parse(test)
    bound = {*bound_in(tree), *known, calls}
    if "check" not in bound or not calls or _imports_solution(tree):
        return frozenset()
    return frozenset(name for name in _loaded(tree) - bound if not name.lstrip("_")[:1].isupper())


def definitions_of(names: frozenset[str], text: str, calls: str) -> str:
    """Python that defines all of them, and what they need: if `text` is such Python, all of it but what is to be written. Else
    empty."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    kept = [each for each in body if isinstance(each, _DEFINES) and getattr(each, "name", "") != calls and not _is_stub(each)]
    defines = {each.name for each in kept if isinstance(each, ast.FunctionDef)}
    return "\n".join(map(ast.unparse, kept)) + "\n" if names <= defines else ""


_DEFINES = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)


def _is_stub(statement: ast.stmt) -> bool:
    """A docstring and no more."""
    return isinstance(statement, ast.FunctionDef) and all(isinstance(each, ast.Pass | ast.Expr) for each in statement.body)


def _loaded(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def bound_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)


def _imports_solution(tree: ast.AST) -> bool:
    """By name, or as a whole: `from solution import *` leaves open what is meant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(alias.name == "solution" for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "solution" and node.names[0].name != "*":
            return True
    return False
