"""Questions of a test's code to a solution, and whether it asks anything. Pure; the code is read, not run.

A test takes its own tools from Python: were a solution's `abs` or `sorted` in its way, the solution would judge itself. Yet tasks
ask for functions that have names of Python's, such as `sum` or `median`.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator, Mapping

from roll.core.errors import boundary
from roll.graders.sandbox.statements import nodes_of
from roll.graders.sandbox.values import KINDS

TOOLS = frozenset(
    (
        *("abs", "all", "any", "callable", "dir", "format", "getattr", "hasattr", "hash", "id", "isinstance", "issubclass"),
        *("iter", "len", "next", "print", "repr", "round", "setattr", "sorted", "vars", "isclose", "isfinite", "isinf"),
        *("isnan", "copy", "deepcopy", "fabs", "dumps", "loads"),
    )
)
"""Functions of Python's that tests use, and tasks do not ask for."""
OF_VALUES = frozenset(name for kind in KINDS for name in dir(kind))
"""Attributes that tests use of values of Python's own types."""
COMPARES = (
    "equ",
    "same",
    "match",
    "ident",
    "iso",
    "close",
    "compar",
    "contain",
    "has",
    "is_",
    "like",
    "near",
    "diff",
    "dist",
    "minus",
)
"""Parts of the names of methods that compare an object with a value."""


def tests_something(test: str, calls: str) -> bool:
    """True if something is asserted, and something runs it. `calls`: the argument of check(), if any. Raises `ValueError` for
    a text that is no Python, and for tests that only a framework would run."""
    with boundary(ValueError, "a test is no Python"):
        tree = ast.parse(test)
    asserts = any(map(_asserts, ast.walk(tree)))
    return asserts and any(_runs(each, calls) for each in tree.body)


def _asserts(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr.startswith(("assert", "raises", "fail"))
    return isinstance(node, ast.Assert | ast.Raise)


def _has_tests(cls: ast.ClassDef) -> bool:
    return any(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test") for each in cls.body)


def _runs(statement: ast.stmt, calls: str) -> bool:
    if isinstance(statement, ast.ClassDef):
        return _has_tests(statement)
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return statement.name.startswith("test") or (statement.name == "check" and bool(calls))
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return False
    if isinstance(statement, ast.If) and "__name__" in _loaded(statement.test):  # it is "tests"
        return False
    return any(isinstance(node, ast.Assert | ast.Raise | ast.Call) for node in ast.walk(statement))


def asked_of_solution(
    tree: ast.Module,
    known: Mapping[str, object],
    calls: str,
    named: frozenset[str] = frozenset(),
    tests: Iterable[ast.Module] = (),
    defined: Iterable[str] = (),
) -> frozenset[str]:
    """The one of Python's names that the test takes from the solution, if there is one; others are in no doubt. It is one
    alone, so that a solution does not bring what it is compared with: one that the task's text names (`named`), that all tests
    have, or that comes first. Beside other names it is what the solution has `defined` and no tool for these.

    `known`: Python's names and what they stand for. Raises `ValueError` if the test asks nothing of the solution."""
    if calls:
        return frozenset({calls})
    bound = set(bound_in(tree))
    if _imports_solution(tree):
        return frozenset()
    places = _places(tree)
    mine = {name for name in places.keys() - bound - TOOLS if callable(known.get(name))}
    classes = {name for name in mine if isinstance(known[name], type)}
    builtin = {name for name in mine if name in vars(builtins)}
    themselves = {each for each in mine & {*defined} if _is_asked_itself(each, tree)}
    if others := _loaded(tree) - bound - known.keys():
        chosen = {each for each in (mine - builtin) & {*defined} if each in named or not _serves(each, others, tree)}
        return frozenset(chosen | themselves)
    for found in (mine & named - builtin, mine - classes - builtin, mine - classes, classes - builtin):
        if found:
            common = [_loaded(each) for each in tests] if len(found) > 1 else []
            shared = {name for name in found if all(name in names for names in common)} or found
            return _of_one_side(min(shared, key=places.__getitem__), found, tree) | themselves
    raise ValueError("a test names nothing that a solution would define")


def _serves(name: str, others: set[str], tree: ast.AST) -> bool:
    """True if a function works for the test: it is compared with one of the others, or given what one returns."""
    functions = {each for each in others if not each.lstrip("_")[:1].isupper()}
    for node in nodes_of(tree):
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
        if called and any(functions & _behind(_loaded(each), tree) for each in node.args):  # type: ignore[attr-defined]
            return True
        if _faces(functions, name, node, others | {name}, tree):
            return True
    return False


def _is_asked_itself(name: str, tree: ast.AST) -> bool:
    """True if a function is there for nothing but to be called with constants and compared with others."""
    uses = {id(node) for node in nodes_of(tree) if isinstance(node, ast.Name) and node.id == name}
    asked = 0
    for node in nodes_of(tree):
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.startswith("assert"):
            sides = node.args
        if all(_loaded(side) <= {name} for side in sides):
            asked += sum(isinstance(side, ast.Call) and id(side.func) in uses for side in sides)
    return bool(uses) and asked == len(uses)


def _of_one_side(first: str, found: set[str], tree: ast.AST) -> frozenset[str]:
    """The first, and those that are never compared with it: a solution does not bring both sides of a comparison."""
    taken = {first}
    for other in sorted(found - taken):
        if not any(_faces(taken, other, node, found, tree) for node in nodes_of(tree)):
            taken.add(other)
    return frozenset(taken)


def _faces(taken: set[str], other: str, node: ast.AST, found: set[str], tree: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
    elif isinstance(node, ast.BinOp):
        sides = [node.left, node.right]
    elif isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in found):
        sides = node.args
    else:
        return False
    names = [_behind(_loaded(side), tree) for side in sides]
    return any(other in one and taken & two for i, one in enumerate(names) for j, two in enumerate(names) if i != j)


def _behind(names: set[str], tree: ast.AST) -> set[str]:
    """Adds the names that the variables among them have been made of."""
    made = [node for node in nodes_of(tree) if isinstance(node, ast.Assign | ast.AugAssign | ast.NamedExpr | ast.For)]
    known = set[str]()
    while names - known:
        known |= names
        for node in made:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(each, ast.Name) and each.id in names for target in targets for each in ast.walk(target)):
                names = names | _loaded(node.iter if isinstance(node, ast.For) else node.value)
    return names


def _places(tree: ast.AST) -> dict[str, tuple[int, int]]:
    """Place at which each name is first read."""
    nodes = [node for node in nodes_of(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    return {node.id: (node.lineno, node.col_offset) for node in sorted(nodes, key=lambda n: (-n.lineno, -n.col_offset))}


def classes_in(tests: Iterable[ast.Module]) -> frozenset[str]:
    """Names that the tests use as those of classes: they derive from them, ask for an instance, take something from them; and all
    that have a capital, where a test asks objects for what no value of Python's own types has."""
    found, capitals, asks = set[str](), set[str](), False
    tests = list(tests)
    for node in (node for test in tests for node in nodes_of(test)):
        if isinstance(node, ast.ClassDef):
            found |= {base.id for base in node.bases if isinstance(base, ast.Name)}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(node.value.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
            found |= _loaded(node.args[1]) if len(node.args) == 2 else set()
        elif isinstance(node, ast.Name) and node.id.lstrip("_")[:1].isupper():
            capitals.add(node.id)
        asks = asks or (isinstance(node, ast.Attribute) and not _is_of_values(node.attr))
    found |= {name for test in tests for name in _changed(test)}
    return frozenset({name for name in found if name.lstrip("_")[:1].isupper()} | (capitals if asks else set()))


def _changed(tree: ast.AST) -> Iterator[str]:
    """Yields names that are called for an object, one of whose methods is called for its effect."""
    made = {
        target.id: node.value.func.id
        for node in nodes_of(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in nodes_of(tree):
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
            yield made.get(call.func.value.id, "")


def objects_in(tests: Iterable[ast.Module]) -> frozenset[str]:
    """Returns names of which the tests ask something."""
    nodes = (node for test in tests for node in nodes_of(test))
    return frozenset(node.value.id for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))


def needs_a_runner(test: str) -> str:
    """Tests that are more than functions without arguments; empty if there are none."""
    for each in ast.parse(test).body:
        if isinstance(each, ast.ClassDef) and _has_tests(each):
            return f"the methods of {each.name}"
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) or not each.name.startswith("test"):
            continue
        if isinstance(each, ast.AsyncFunctionDef) or len(each.args.args) > len(each.args.defaults):
            return f"{each.name}, which is asynchronous or has parameters"
    return ""


def _is_of_values(name: str) -> bool:
    """True if values of Python's own types have it, or it compares: then a function may be what the task asks for."""
    return name in OF_VALUES or any(word in name.lower() for word in COMPARES)


def named_in(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Functions and classes that a task's text defines, or shows as code."""
    functions = (one or other for one, other in re.findall(r"\bdef\s+(\w+)|`(\w+)\(", text))
    return frozenset(functions), frozenset(re.findall(r"\bclass\s+`?(\w+)", text))


def helpers_in(test: str, calls: str, known: Iterable[str]) -> frozenset[str]:
    """Returns names that a test takes from elsewhere besides the function that it gets as an argument: tools, which no solution
    may bring. Classes are no tools: values have to be of one."""
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
    return {node.id for node in nodes_of(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def bound_in(tree: ast.AST) -> Iterator[str]:
    for node in nodes_of(tree):
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
    """True if it imports a name of the solution's, or the whole module; `from solution import *` leaves open which."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Import) and any(alias.name == "solution" for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "solution" and node.names[0].name != "*":
            return True
    return False
