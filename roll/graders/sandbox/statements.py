"""Effects of a test's code that its solution, in another process, does not see; where it raises, and what it ignores. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterable


def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """Walks like `ast.walk`, without contexts; looked up once for a tree."""
    known: list[ast.AST] | None = getattr(tree, "roll_nodes", None)
    if known is not None:
        return known
    nodes = [tree]
    for node in nodes:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                nodes += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and name != "ctx":
                nodes.append(value)
    tree.roll_nodes = nodes  # type: ignore[attr-defined]
    return nodes


def raises_in(tree: ast.AST) -> frozenset[int]:
    """Lines of statements that raise."""
    statements = [node for node in nodes_of(tree) if isinstance(node, ast.Raise)]
    return frozenset(line for node in statements for line in range(node.lineno, (node.end_lineno or node.lineno) + 1))


def calls_results(tree: ast.AST) -> bool:
    """True if it calls the value of another call."""
    return any(isinstance(node, ast.Call) and isinstance(node.func, ast.Call) for node in nodes_of(tree))


def ignored_calls(tree: ast.AST) -> frozenset[tuple[int, int, int, int]]:
    """Places of calls whose values nobody uses."""
    calls = [node.value for node in nodes_of(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    return frozenset((each.lineno, each.end_lineno or 0, each.col_offset, each.end_col_offset or 0) for each in calls)


def cuts_short(tree: ast.AST) -> bool:
    """True if it gives up an awaited value at a moment: the tester cannot, while the solution computes."""
    return any(
        (node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")) == "timeout_at" for node in nodes_of(tree)
    )


def asks_for_metaclass(tree: ast.AST, classes: Iterable[str]) -> bool:
    """True if it asks for the class of one of the solution's classes: a proxy has another."""
    known = {*classes}
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type" and len(node.args) == 1:
            asked = node.args[0]
        elif isinstance(node, ast.Attribute) and node.attr == "__class__":
            asked = node.value
        else:
            continue
        if isinstance(asked, ast.Name) and asked.id in known:
            return True
    return False


_FILES = frozenset(
    (
        *("write_text", "write_bytes", "read_text", "read_bytes", "makedirs", "mkdtemp", "listdir", "is_file", "is_dir"),
        *("isfile", "isdir", "unlink", "getsize", "rmtree"),
    )
)


def uses_files(tree: ast.AST) -> bool:
    """The solution's process has others."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            return True
        if (isinstance(node, ast.Name) and node.id == "tempfile") or (
            isinstance(node, ast.arg) and node.arg in ("tmp_path", "tmpdir")
        ):
            return True
        if isinstance(node, ast.Attribute) and (node.attr in _FILES or ast.unparse(node) == "os.path.exists"):
            return True
    return False


def texts_in(trees: Iterable[ast.AST]) -> frozenset[str]:
    """Constants."""
    nodes = (node for tree in trees for node in nodes_of(tree))
    return frozenset(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def modules_of(tree: ast.AST) -> set[str]:
    """Returns modules that it imports, or imports from."""
    plain = {alias.name for node in nodes_of(tree) if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module or "" for node in nodes_of(tree) if isinstance(node, ast.ImportFrom)}


def starts_processes(tree: ast.AST) -> bool:
    """True if it starts processes, which have no solution."""
    named = any("ProcessPoolExecutor" in (getattr(node, "attr", ""), getattr(node, "name", "")) for node in nodes_of(tree))
    return named or any(name.partition(".")[0] == "multiprocessing" for name in modules_of(tree))


_RUNS = ("eval", "exec", "compile")
_LOADERS = ("Loader", "CLoader", "UnsafeLoader", "CUnsafeLoader", "unsafe_load", "unsafe_load_all")


def runs_text(tree: ast.AST) -> bool:
    """True if it runs text that does not stand in it."""
    imported = modules_of(tree)
    named = sum(isinstance(node, ast.Name) and node.id in _RUNS for node in nodes_of(tree))
    return named > sum(_runs_own(node) for node in nodes_of(tree)) or any(_lets_run(node, imported) for node in nodes_of(tree))


def evaluates(trees: Iterable[ast.AST]) -> bool:
    return any(_runs_own(node) for tree in trees for node in nodes_of(tree))


def _lets_run(node: ast.AST, imported: set[str]) -> bool:
    """True for readers of YAML that call functions it names, and for expressions of pandas that a test does not write."""
    names = [getattr(node, "attr", ""), getattr(node, "id", ""), getattr(node, "name", "")]
    if "yaml" in imported and any(name in _LOADERS for name in names):
        return True
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
        return False
    if isinstance(node.func.value, ast.Name) and node.func.value.id == "builtins":
        return node.func.attr in _RUNS
    made = "pandas" in imported or any(isinstance(each, ast.Call) for each in nodes_of(node.args[0]))
    return node.func.attr in ("eval", "query") and made and not isinstance(node.args[0], ast.Constant)


def _runs_own(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
        return False
    text = node.args[0]
    return node.func.id in _RUNS and (isinstance(text, ast.Constant) or _runs_own(text))
