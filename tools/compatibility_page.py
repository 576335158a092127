"""Tables of what becomes of another framework's keys, for the pages of compatibility."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from roll.compat.roll.rule import KeyRule

BECOMES = {"alias": "read", "without effect": "without effect", "lacking": "refused"}
HEAD = "| key | value | becomes | |\n|---|---|---|---|\n"


def blocks(rules: Sequence[KeyRule], depth: int = 1) -> Iterator[str]:
    """Yields a heading and a table for each block. `depth`: names of a block's path that its heading has."""
    named = sorted(rules, key=lambda rule: _block(rule, depth))
    for block, listed in groupby(named, key=lambda rule: _block(rule, depth)):
        yield f"## {f'`{block}`' if block else 'Top level'}\n"
        yield HEAD + "".join(_rows(list(listed), block))


def _block(rule: KeyRule, depth: int) -> str:
    names = rule.path.split(".")[:-1]
    return ".".join(names[: depth if names[:1] == ["actor_rollout_ref"] else 1])


def _rows(rules: list[KeyRule], block: str) -> Iterator[str]:
    seen: set[str] = set()
    for rule in rules:
        values = rule.values or ("else" if rule.path in seen else "any")
        yield f"| `{rule.path.removeprefix(f'{block}.')}` | {cell(values)} | {BECOMES[rule.kind]} | {cell(rule.note)} |\n"
        seen.add(rule.path)


def cell(text: str) -> str:
    return text.replace("|", "&#124;").replace("<", "&lt;").replace("*", "\\*")
