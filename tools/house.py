"""Measures the structure of `roll/`: python tools/house.py

Lines of the rooms, of the spine (what a stranger reads to have the system) and of the core without its adapters and reports;
circles among modules; long files and functions; callables in constructors; `Any`. Imports inside functions count as imports.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "roll"
ADAPTERS = ("strategies/infer/", "strategies/train/", "strategies/cpu_shims/")
MOST_LINES, LONGEST_FUNCTION = 350, 40


def spine() -> list[str]:
    """The files that docs_roll/reading.md lists first."""
    table = (ROOT.parent / "docs_roll" / "reading.md").read_text().partition("## Twelve questions")[0]
    return re.findall(r"`roll/([\w/]+\.py)`", table)


def annexes() -> tuple[str, ...]:
    """The rooms that no other room imports at load time: one list, that of the contract in pyproject.toml."""
    contracts = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (rooms,) = (each["forbidden_modules"] for each in contracts if each["name"].startswith("Annexes know the rooms"))
    return tuple(f"{room.removeprefix('roll.')}/" for room in rooms)


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
        rooms[name.split("/")[0]] = rooms.get(name.split("/")[0], 0) + count
    print("lines by room:", ", ".join(f"{room} {count}" for room, count in sorted(rooms.items(), key=lambda item: -item[1])))
    print("roll/:", sum(lines.values()), "lines in", len(lines), "files")
    print("spine:", sum(lines[name] for name in spine()), "lines in", len(spine()), "files")
    core = sum(count for name, count in lines.items() if not name.startswith((*ADAPTERS, *annexes(), "reports/", "cli/")))
    print("core without adapters, reports, command line and annexes:", core, "lines")
    print("circles:", circles(graph) or 0)
    print("files over", MOST_LINES, "lines:", [name for name, count in lines.items() if count > MOST_LINES] or 0)
    spans = [(f.name, (f.end_lineno or 0) - f.lineno + 1, path) for path, tree in trees.items() for f in functions(tree)]
    long = [f"{path.relative_to(ROOT)}:{name} ({span})" for name, span, path in spans if span > LONGEST_FUNCTION]
    print("functions over", LONGEST_FUNCTION, "lines:", len(long), *long, sep="\n  ")
    doors = [f"{path.relative_to(ROOT)}:{name}" for path, tree in trees.items() for name in callables(tree)]
    print("callables in constructors:", len(doors), *doors, sep="\n  ")
    anys = sum(isinstance(n, ast.Name) and n.id == "Any" for tree in trees.values() for n in ast.walk(tree))
    print(f"Any: {1000 * anys / sum(lines.values()):.1f} per 1,000 lines")


if __name__ == "__main__":
    main()
