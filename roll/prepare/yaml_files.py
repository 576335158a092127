"""YAML files before they are composed: the place of each key, by file and line, and limits on files, for a short one can stand
for a structure without end.

An alias counts as its target, so a file is as large as the structure built from it. The parser's events are read one
by one, without recursion; no node is made."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from roll.core.configs.problems import ConfigError, Problem
from roll.core.data.untrusted import read_regular

LARGEST_FILE = 4 << 20
"""Bytes."""
MOST_NODES = 100_000
"""Keys, values and list entries, with aliases expanded."""
DEEPEST = 50
"""Levels of mappings and lists."""
MOST_INCLUDED = 200
"""Files that a configuration includes by its defaults lists, each as often as it is named."""
LONGEST_CHAIN = 20
"""Files of which each is named by the one before."""
MOST_RESOLVED = 10_000_000
"""Characters, with every `${...}` replaced by its target."""
# The C parser has the same marks and is ten times as fast; not every build of PyYAML has it.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Octal, and base 60: hardly what is meant by 010 or 1:30:00.
_OLD_NUMBER = re.compile(r"[-+]?(0[0-7_]*[1-7][0-7_]*|[1-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")
_TYPES = {"!", *(f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str", "int", "float", "bool", "null", "merge"))}
_WRITTEN = "write out what it stands for"
_MEND = "mend that line; a text with : # { [ or a tab goes in quotes"
_OTHER_TYPES = {
    "set": "a list, [a, b]",
    "omap": "a mapping",
    "pairs": "a list",
    "binary": "a text",
    "timestamp": "a text in quotes",
}
_REFERENCE = re.compile(r"\$\{\s*(\.*[\w.\[\]-]+)\s*\}")


@dataclass(slots=True)
class _Open:
    """A mapping or a list whose end has not come yet."""

    anchor: str | None
    nodes: int = 1
    height: int = 1


def read_checked(path: Path, shown: str) -> str:
    """Returns the text of a YAML file that is within the limits. `shown`: its name in complaints.

    Raises `ConfigError` with one problem, and `FileNotFoundError`."""
    try:
        content = read_regular(path, LARGEST_FILE)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        fix = "a regular file that may be read"
        raise ConfigError([Problem("config_name", shown, f"cannot be read: {error}", fix)]) from None
    try:
        _measure(text := content.decode("utf-8-sig"), shown)
    except UnicodeDecodeError as error:
        line, byte = content[: error.start].count(b"\n") + 1, content[error.start]
        message = f"is not valid YAML: byte 0x{byte:02x} is no UTF-8"
        raise ConfigError([Problem("config_name", shown, message, "save the file as UTF-8", f"{shown}:{line}")]) from None
    except yaml.YAMLError as error:
        raise ConfigError([Problem("config_name", shown, f"is not valid YAML: {said(error, text)}", _MEND)]) from None
    return text


def read_nodes(path: Path, shown: str) -> yaml.Node | None:
    """Returns the file's root, with the marks of its lines; None if it is empty. Raises as `read_checked`."""
    text = read_checked(path, shown)
    try:
        return yaml.compose(text, Loader=LOADER)
    except yaml.YAMLError as error:
        raise ConfigError([Problem("config_name", shown, f"is not valid YAML: {said(error, text)}", _MEND)]) from None


def _measure(text: str, shown: str) -> None:
    known: dict[str, tuple[int, int]] = {}
    around: list[_Open] = [_Open(None, 0, 0)]
    for event in yaml.parse(text, Loader=LOADER):
        if (tag := getattr(event, "tag", None)) not in {None, *_TYPES}:
            name = str(tag).removeprefix("tag:yaml.org,2002:")
            message = f"!!{name} is no type that a configuration has" if name != tag else f"the tag {name} is not read"
            raise _refusal(shown, event, message, _OTHER_TYPES.get(name, "leave it out"))
        if isinstance(event, yaml.CollectionStartEvent):
            around.append(_Open(event.anchor))
            done = None
        elif isinstance(event, yaml.CollectionEndEvent):
            inner = around.pop()
            done = (inner.anchor, inner.nodes, inner.height)
        elif isinstance(event, yaml.ScalarEvent):
            if event.implicit[0] and _OLD_NUMBER.fullmatch(event.value):
                raise _refusal(shown, event, *_old_number(event.value))
            done = (event.anchor, 1, 0)
        elif isinstance(event, yaml.AliasEvent):
            if any(each.anchor == event.anchor for each in around):
                raise _refusal(shown, event, f"the alias *{event.anchor} stands inside what it names: that has no end", _WRITTEN)
            if event.anchor not in known:
                raise _refusal(shown, event, f"the alias *{event.anchor} names nothing that stands before it", _WRITTEN)
            done = (None, *known[event.anchor])
        else:
            continue
        if done is not None:
            anchor, nodes, height = done
            if anchor is not None:
                known[anchor] = (nodes, height)
            around[-1].nodes += nodes
            around[-1].height = max(around[-1].height, height + 1)
        if len(around) + (done[2] if done else 0) > DEEPEST:
            raise _refusal(shown, event, f"is nested more than {DEEPEST} levels deep", "fewer levels")
        if around[-1].nodes > MOST_NODES:
            raise _refusal(shown, event, f"has more than {MOST_NODES:,} entries, aliases expanded", "fewer entries")


def _old_number(text: str) -> tuple[str, str]:
    """Returns the fault of an octal number or one of base 60, and its fix."""
    number = yaml.load(text, Loader=LOADER)
    return f"{text} is the number {number} to YAML 1.1", f"{number}, or '{text}' for a text"


def _refusal(shown: str, event: yaml.Event, message: str, fix: str) -> ConfigError:
    mark: Any = event.start_mark
    return ConfigError([Problem("config_name", shown, message, fix, where=f"{shown}:{mark.line + 1}")])


def check_references(composed: Mapping[str, object]) -> None:
    """Raises `ConfigError` for `${...}` that refer to each other in a circle, or double each other's text again and again.

    `composed`: the configuration before they are resolved."""
    flat = dict(_leaves(composed, ""))
    sizes: dict[str, int] = {}

    def size(key: str, chain: tuple[str, ...]) -> int:
        """Returns the size of a key's resolved value, or of the block below it."""
        if key in chain:
            message = f"refers to itself: {' -> '.join((*chain, key)[-4:])}"
            raise ConfigError([Problem(key, flat.get(key), message, "write the value of one of them")])
        if len(chain) > DEEPEST:
            message = f"is resolved by more than {DEEPEST} references in a row"
            raise ConfigError([Problem(chain[0], flat.get(chain[0]), message, "write the value itself")])
        if key not in sizes:
            keys = [key] if key in flat else [each for each in flat if each.startswith((f"{key}.", f"{key}["))]
            total = 1
            for each in keys:
                value = flat[each]
                targets = _REFERENCE.findall(value) if isinstance(value, str) else []
                inner = (*chain, key) if each == key else (*chain, key, each)
                total += len(str(value)) + sum(size(_absolute(target, each), inner) for target in targets)
            sizes[key] = total
        return sizes[key]

    whole = sum(size(key, ()) for key in flat)
    if whole > MOST_RESOLVED:
        largest = max(sizes, key=lambda key: sizes[key])
        message = f"with all ${{...}} replaced there would be more than {MOST_RESOLVED:,} characters"
        raise ConfigError([Problem(largest, flat.get(largest), message, "write the values of some of them")])


def _absolute(target: str, key: str) -> str:
    """`.a` is a neighbour of the key, `..a` one of the block around it."""
    name = target.lstrip(".")
    dots = len(target) - len(name)
    if not dots:
        return name
    parts = key.split(".")
    return ".".join([*parts[: max(len(parts) - dots, 0)], name])


def _leaves(value: object, key: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{key}[{index}]")
    else:
        yield key, value


COMMAND_LINE = "command line"
_SELF = "_self_"


def origins(folder: Path, name: str, overrides: Sequence[str] = ()) -> dict[str, str]:
    """Returns `file:line` by dotted key (list entries as `key[0]`), later files over earlier ones in the order of Hydra's
    defaults list.

    A value that comes by `${...}` has no entry of its own: the block around it has. Files that cannot be read are left out."""
    found: dict[str, str] = {}
    for key, place in _files(folder, name):
        found[key] = place
    for override in overrides:
        found[override.lstrip("+~").partition("=")[0].split("@")[0]] = COMMAND_LINE
    return found


def files(folder: Path, name: str) -> dict[str, set[str]]:
    """Returns the top-level keys that each file writes, by its path relative to `folder`; the file itself first."""
    own = f"{name}.yaml"
    by_file: dict[str, set[str]] = {own: set()}
    for key, place in _files(folder, name):
        by_file.setdefault(place.rpartition(":")[0], set()).add(key.split(".")[0].split("[")[0])
    return by_file


def check_files(folder: Path, name: str) -> None:
    """Raises `ConfigError` with one problem for a file that is beyond the limits, or files that include each other without
    end. A file that is not valid YAML, or does not exist, is left to Hydra, whose error says why the file is needed."""
    waiting = [(folder / f"{name}.yaml", 1)]
    seen = 0
    while waiting:
        path, chain = waiting.pop()
        shown = os.path.relpath(path, folder)
        seen += 1
        if chain > LONGEST_CHAIN or seen > MOST_INCLUDED:
            message = f"its defaults lists include more than {MOST_INCLUDED} files, or each other in a circle ({shown})"
            raise ConfigError([Problem("config_name", name, message, f"take one of them out of the defaults list of {shown}")])
        try:
            root = read_nodes(path, shown)
        except FileNotFoundError:
            continue
        if root is not None and not isinstance(root, yaml.MappingNode):
            message = f"is a {'list' if isinstance(root, yaml.SequenceNode) else 'text'}, not a mapping"
            raise ConfigError([Problem("config_name", shown, message, "a key and its value a line: max_steps: 100")])
        waiting += [(_included(path, option), chain + 1) for option, _ in _defaults(root)]


def _files(folder: Path, name: str) -> Iterator[tuple[str, str]]:
    """Yields the files of the defaults list that are within the limits; others are left out."""
    try:
        check_files(folder, name)
    except ConfigError:
        return
    yield from _file(folder, folder / f"{name}.yaml", "")


def _file(folder: Path, path: Path, package: str) -> Iterator[tuple[str, str]]:
    shown = os.path.relpath(path, folder)
    try:
        root = read_nodes(path, shown)
    except (FileNotFoundError, ConfigError):
        return
    if not isinstance(root, yaml.MappingNode):
        return
    names = _defaults(root)
    for option, into in names if (_SELF, "") in names else [*names, (_SELF, "")]:  # without _self_ the file itself comes last
        if option == _SELF:
            yield from _node(root, package, shown)
        else:
            default = option.rpartition("/")[0].replace("/", ".")
            inner = {"_here_": "", "_global_": ""}.get(into, into or default)
            yield from _file(folder, _included(path, option), _join(package, inner))


def _defaults(root: yaml.Node | None) -> list[tuple[str, str]]:
    """Returns option and package of each entry of the defaults list."""
    if not isinstance(root, yaml.MappingNode):
        return []
    entries = next((value for key, value in root.value if key.value == "defaults"), None)
    listed = entries.value if isinstance(entries, yaml.SequenceNode) else []
    names = [str(entry.value) if isinstance(entry, yaml.ScalarNode) else _chosen(entry) for entry in listed]
    parts = [name.partition("@") for name in names if name]
    return [(option, into) for option, _, into in parts]


def _included(path: Path, option: str) -> Path:
    return path.parent / f"{option.removesuffix('.yaml')}.yaml"


def _chosen(entry: yaml.Node) -> str:
    """Returns `{group: option}` of a defaults list as `group/option`."""
    if isinstance(entry, yaml.MappingNode) and entry.value and isinstance(entry.value[0][1], yaml.ScalarNode):
        group, option = entry.value[0]
        path, at, into = str(group.value).removeprefix("override ").partition("@")
        return f"{path}/{option.value}{at}{into}"
    return ""


def _node(node: yaml.Node, key: str, shown: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            inner = _join(key, str(name.value))
            if key or name.value not in ("defaults", "hydra"):
                yield inner, f"{shown}:{name.start_mark.line + 1}"
                yield from _node(value, inner, shown)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield f"{key}[{index}]", f"{shown}:{value.start_mark.line + 1}"
            yield from _node(value, f"{key}[{index}]", shown)


def _join(package: str, key: str) -> str:
    return f"{package}.{key}" if package and key else package or key


def said(error: Exception, text: str = "") -> str:
    """Returns the error in one line, without the reader's name for text that is no file. `text`: the text that was read, if
    known: the parser names no character."""
    told, mark = str(error), getattr(error, "problem_mark", None)
    if mark is not None and "cannot start any token" in told:
        lines = text.splitlines()
        line = lines[mark.line] if mark.line < len(lines) else ""
        if line[mark.column : mark.column + 1] == "\t" or "'\\t'" in told:
            return f"line {mark.line + 1} is indented by a tab, where YAML takes spaces"
    return " ".join(told.replace('in "<unicode string>", ', "at ").split())
