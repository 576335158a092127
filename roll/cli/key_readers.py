"""Which modules read each configuration key, found in their source: attribute reads on expressions whose type is a config class.

Types come from annotated parameters, fields, properties, isinstance and what is assigned from them; nothing is imported or run
but `roll.configs`. What only checks or describes a configuration does not count as a reader.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from inspect import get_annotations
from pathlib import Path
from typing import Any, get_args, get_type_hints

from roll.configs.schema import walk

ONLY_CHECK = ("validation", "_rules", "estimators")
"""Starts or ends of modules of `roll.configs` that do not count."""
ONLY_DESCRIBE = ("configs.planning.", "configs.from_roll.")
Types = frozenset[Any]
NONE: Types = frozenset()
PASS_THROUGH = ("values", "items", "get", "setdefault", "pop")
"""Methods of a mapping of blocks that hand its blocks on."""


def readers(root: Path, configs: Iterable[Any], schemas: Iterable[Any] = ()) -> dict[tuple[str, str], list[str]]:
    """(declaring class, field) -> modules, as `pipeline.roles`, sorted. `root`: folder of the package `roll`; `schemas`: classes
    of `strategy_config`, which no field names."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    known = _classes([*configs, *schemas])
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    listed = {
        node.name: _field_names(node) for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    }
    returned = {
        node.name: frozenset(known[name] for name in _names(node.returns) if name in known)
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    held: dict[str, dict[str, Types]] = {}
    for _ in range(2):  # what a class holds may be set by a base in a module further down
        for path in (path for path, text in texts.items() if "onfig" in text):  # others cannot hold a configuration
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            reader = _Module(known, listed, returned, held)
            reader.visit(trees[path])
            for read in reader.reads if _counts(module) else ():
                found[read].add(module.removesuffix(".__init__"))
    return {key: sorted(modules) for key, modules in found.items()}


def owner(cls: Any, name: str) -> str:
    """The class in whose body the field stands."""
    return next(str(base.__name__) for base in cls.__mro__ if name in get_annotations(base))


def _counts(module: str) -> bool:
    folder, _, name = module.rpartition(".")
    if module.startswith(ONLY_DESCRIBE) or module in ("cli.check", "cli.check_text", "cli.key_readers", "cli.config_reference"):
        return False
    return folder != "configs" or not any(name.startswith(part) or name.endswith(part) for part in ONLY_CHECK)


def _classes(roots: Iterable[Any]) -> dict[str, Any]:
    """All config classes by name, with the bases that declare fields."""
    found: dict[str, Any] = {}
    for root in roots:
        blocks = [member for _, _, hint in walk(root) for member in (hint, *get_args(hint)) if is_dataclass(member)]
        for cls in (root, *blocks):
            found |= {base.__name__: base for base in getattr(cls, "__mro__", ()) if base in _members(base)}
    return found


def _field_names(node: ast.ClassDef) -> list[str]:
    return [item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]


def _names(node: ast.expr | None) -> set[str]:
    return set() if node is None else {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _members(hint: Any) -> Iterator[Any]:
    """The classes in a type: through unions, lists and mappings."""
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for inner in get_args(hint):
        yield from _members(inner)


class _Module(ast.NodeVisitor):
    """Reads of one module. Names are resolved function by function, without regard to the order of statements."""

    def __init__(
        self,
        known: dict[str, Any],
        listed: dict[str, list[str]],
        returned: dict[str, Types],
        held: dict[str, dict[str, Types]],
    ) -> None:
        """`listed`: fields of every class of the package; `returned`: config classes that its functions return; `held`: those
        that the attributes of its classes are, filled by every visit. By name."""
        self.known = known
        self.listed = listed
        self.returned = returned
        self.held = held
        self.reads: set[tuple[str, str]] = set()
        self.of_self: dict[str, Types] = {}
        self.names: dict[str, Types] = {}

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self.of_self = self.of_self, dict(self.held.get(node.name, {}))
        for base in node.bases:
            for name, classes in self.held.get(base.id if isinstance(base, ast.Name) else "", {}).items():
                self.of_self[name] = self.of_self.get(name, NONE) | classes
        own = self.known.get(node.name)
        if own is not None:
            self.of_self[""] = frozenset({own})
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                self.of_self[item.target.id] = self.annotated(item.annotation)
        self.generic_visit(node)
        self.held[node.name] = {name: classes for name, classes in self.of_self.items() if name}
        self.of_self = outer

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outer = self.names
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        self.names = outer | {each.arg: self.annotated(each.annotation) for each in arguments}
        for _ in range(2):  # names may hang on names that are set further down
            self.generic_visit(node)
        self.names = outer

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self.bind(target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.give(node.target, self.annotated(node.annotation) | self.types(node.value))
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.give(node.target, self.types(node.value))
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self.bind_items(node.target, node.iter)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self.bind_items(node.target, node.iter)
        self.generic_visit(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node)

    def visit_ListComp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp) -> None:
        self._comprehension(node)

    visit_GeneratorExp = visit_ListComp
    visit_SetComp = visit_ListComp

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp) -> None:
        for generator in node.generators:
            self.visit(generator)
            self._fields_of(node, generator)
        self.generic_visit(node)

    def _fields_of(self, node: ast.AST, generator: ast.comprehension) -> None:
        """`getattr(x, item.name) ... for item in fields(C)`: x is read under all names of C's fields."""
        source = generator.iter
        if not (
            isinstance(source, ast.Call) and isinstance(source.func, ast.Name) and source.func.id == "fields" and source.args
        ):
            return
        cls = source.args[0].id if isinstance(source.args[0], ast.Name) else ""
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "getattr":
                for name in self.listed.get(cls, []):
                    self.read(self.types(call.args[0]), name)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "isinstance" and isinstance(node.args[0], ast.Name):
            classes = self.annotated(node.args[1])
            self.give(node.args[0], self.names.get(node.args[0].id, NONE) | classes)
        if name == "asdict" and node.args:
            for cls in self.types(node.args[0]):
                for block in _classes([cls]).values():
                    for item in fields(block):
                        self.read(frozenset({block}), item.name)
        if name == "getattr" and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            self.read(self.types(node.args[0]), str(node.args[1].value))
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            self.read(self.types(node.value), node.attr)
        self.generic_visit(node)

    def read(self, classes: Types, name: str) -> None:
        for cls in classes:
            if name in _field_set(cls):
                self.reads.add((owner(cls, name), name))

    def bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
            for each, part in zip(target.elts, value.elts, strict=False):
                self.bind(each, part)
        else:
            self.give(target, self.types(value))

    def bind_items(self, target: ast.expr, source: ast.expr) -> None:
        if isinstance(source, (ast.Tuple, ast.List)):
            for each in source.elts:
                self.bind(target, each)
        else:
            self.give(target, self.types(source))

    def give(self, target: ast.expr, classes: Types) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for each in target.elts:
                self.give(each, classes)
        elif isinstance(target, ast.Name):
            self.names[target.id] = self.names.get(target.id, NONE) | classes
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
            self.of_self[target.attr] = self.of_self.get(target.attr, NONE) | classes

    def annotated(self, node: ast.expr | None) -> Types:
        """Config classes that an annotation names."""
        return frozenset(self.known[name] for name in _names(node) if name in self.known)

    def types(self, node: ast.expr) -> Types:
        """Config classes that an expression may be an instance, a list or a mapping of."""
        if isinstance(node, ast.Name):
            return self.of_self.get("", NONE) if node.id == "self" else self.names.get(node.id, NONE)
        if isinstance(node, ast.Attribute):
            of_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            held = self.of_self.get(node.attr, NONE) if of_self else NONE
            return held | frozenset(cls for base in self.types(node.value) for cls in _attribute(base, node.attr))
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                return self.returned.get(node.func.id, NONE)
            through = isinstance(node.func, ast.Attribute) and node.func.attr in PASS_THROUGH
            return self.types(node.func.value if through and isinstance(node.func, ast.Attribute) else node.func)
        if isinstance(node, (ast.Subscript, ast.Await, ast.Starred, ast.NamedExpr)):
            return self.types(node.value)
        parts: list[ast.expr] = []
        if isinstance(node, ast.IfExp):
            parts = [node.body, node.orelse]
        elif isinstance(node, ast.BoolOp):
            parts = node.values
        elif isinstance(node, ast.BinOp):
            parts = [node.left, node.right]
        elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            parts = node.elts
        elif isinstance(node, ast.Dict):
            parts = node.values
        elif isinstance(node, ast.DictComp):
            parts = [node.value]
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
            parts = [node.elt]
        return NONE.union(*(self.types(part) for part in parts))


@cache
def _field_set(cls: Any) -> frozenset[str]:
    return frozenset(item.name for item in fields(cls))


@cache
def _attribute(cls: Any, name: str) -> tuple[Any, ...]:
    """Config classes that a field, property or method of a config class yields."""
    hint = get_type_hints(cls).get(name)
    if hint is None:
        member = getattr(cls, name, None)
        function = member.fget if isinstance(member, property) else member
        hint = get_type_hints(function).get("return") if callable(function) else None
    return tuple(_members(hint))
