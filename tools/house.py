"""Measures the structure of `roll/`: python tools/house.py

Lines of the rooms, of the spine (what a stranger reads to have the system) and of the core, `roll/core/`; circles among modules;
long files and functions; callables in constructors; `Any`. For circles, imports inside functions count as imports.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1] / "roll"
MOST_LINES, LONGEST_FUNCTION = 350, 40
OPENINGS = r"(What|Of|Whether|Who|How|Where|Those|As)\b"


def spine() -> list[str]:
    """The files that docs_roll/reading.md lists first."""
    table = (ROOT.parent / "docs_roll" / "reading.md").read_text().partition("## Twelve questions")[0]
    return re.findall(r"`roll/([\w/]+\.py)`", table)


def limits() -> dict[str, Any]:
    """`[tool.house]` of pyproject.toml: measures of the core that may fall, never rise."""
    found: dict[str, Any] = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["tool"]["house"]
    return found


def core() -> list[Path]:
    return [path for path in sorted((ROOT / "core").rglob("*.py")) if path.name != "__init__.py"]


def lines_of(paths: Iterable[Path]) -> int:
    return sum(path.read_text().count("\n") for path in paths)


def anys(paths: Iterable[Path]) -> float:
    """`Any` per 1,000 lines."""
    paths = list(paths)
    trees = (ast.parse(path.read_text()) for path in paths)
    return 1000 * sum(isinstance(n, ast.Name) and n.id == "Any" for tree in trees for n in ast.walk(tree)) / lines_of(paths)


def docstrings(paths: Iterable[Path]) -> list[str]:
    """Those of modules, classes, functions, and the strings below a name."""
    found = []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            body = getattr(node, "body", None)
            for each in body if isinstance(body, list) else ():
                if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str):
                    found.append(each.value.value)
    return found


def whats(paths: Iterable[Path]) -> float:
    """The word what per 100 words of docstrings: a noun says it more clearly."""
    words = [word.lower() for text in docstrings(paths) for word in re.findall(r"[A-Za-z']+", text)]
    return 100 * words.count("what") / max(len(words), 1)


def vague_openings(paths: Iterable[Path]) -> float:
    """Docstrings of 100 that do not open with a noun or a verb."""
    texts = docstrings(paths)
    return 100 * sum(re.match(OPENINGS, text.strip()) is not None for text in texts) / max(len(texts), 1)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.AST, known: set[str]) -> set[str]:
    """The modules of `roll` that a module imports, anywhere in it, except for type checking."""
    guarded = {id(node) for outer in ast.walk(tree) if _is_type_checking(outer) for node in ast.walk(outer)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names} & known
            found |= inside or ({node.module} & known)
    return found


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Sets of modules that reach each other (Tarjan's strongly connected components of more than one)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for following in graph[node]:
            if following not in index:
                visit(following)
                low[node] = min(low[node], low[following])
            elif following in stack:
                low[node] = min(low[node], index[following])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def callables(tree: ast.AST) -> list[str]:
    """Constructor parameters that are callables: doors that nobody sees."""
    arguments = [a for f in functions(tree) if f.name == "__init__" for a in (*f.args.args, *f.args.kwonlyargs)]
    return [a.arg for a in arguments if a.annotation is not None and "Callable" in ast.unparse(a.annotation)]


def main() -> None:
    texts = {path: path.read_text() for path in sorted(ROOT.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = {str(path.relative_to(ROOT)): text.count("\n") for path, text in texts.items()}
    known = {module_of(path) for path in texts}
    graph = {module_of(path): imports_of(tree, known) - {module_of(path)} for path, tree in trees.items()}
    rooms: dict[str, int] = {}
    for name, count in lines.items():
        room = "/".join(name.split("/")[: 2 if name.startswith("core/") else 1])
        rooms[room] = rooms.get(room, 0) + count
    print("lines by room:", ", ".join(f"{room} {count}" for room, count in sorted(rooms.items(), key=lambda item: -item[1])))
    print("roll/:", sum(lines.values()), "lines in", len(lines), "files")
    print("spine:", sum(lines[name] for name in spine()), "lines in", len(spine()), "files")
    inside = core()
    print("core:", lines_of(inside), "lines in", len(inside), "files;", f"Any {anys(inside):.1f} per 1,000 lines")
    print(f"docstrings: {whats(texts):.2f} what in 100 words; {vague_openings(texts):.1f} % have no noun or verb first")
    print("circles:", circles(graph) or 0)
    print("files over", MOST_LINES, "lines:", [name for name, count in lines.items() if count > MOST_LINES] or 0)
    spans = [(f.name, (f.end_lineno or 0) - f.lineno + 1, path) for path, tree in trees.items() for f in functions(tree)]
    long = [f"{path.relative_to(ROOT)}:{name} ({span})" for name, span, path in spans if span > LONGEST_FUNCTION]
    print("functions over", LONGEST_FUNCTION, "lines:", len(long), *long, sep="\n  ")
    doors = [f"{path.relative_to(ROOT)}:{name}" for path, tree in trees.items() for name in callables(tree)]
    print("callables in constructors:", len(doors), *doors, sep="\n  ")
    print(f"Any: {anys(texts):.1f} per 1,000 lines")


if __name__ == "__main__":
    main()
