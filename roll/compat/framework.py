"""Another framework's settings, turned into keys of this project by its rules, with a note on every key. Pure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from roll.compat.roll.rule import KeyRule, unshared, value_at, write_at
from roll.compat.roll.translation import Translation
from roll.core.configs.problems import Note, did_you_mean

File = Mapping[str, Any]


def at(file: File, path: str, default: Any = None) -> Any:
    value = value_at(file, tuple(path.split(".")))
    return default if value is None else value


def is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def is_text(value: object, file: File) -> bool:
    return isinstance(value, str) and value != ""


def is_one_of(*values: object) -> Any:
    return lambda value, file: value in values


@dataclass(frozen=True)
class Framework:
    """The second argument of its rules' functions is the whole file, for a number here often follows from several keys there."""

    name: str
    owns: Callable[[File], bool]
    """Recognises a file of the framework."""
    blocks: Sequence[str]
    scalars: Sequence[str]
    rules: Sequence[KeyRule]
    left_out: Callable[[File], Mapping[str, object]]
    """Its defaults that are not the ones here: they count where a file leaves the key out."""
    needed: Mapping[str, str] = field(default_factory=dict)
    """Keys that must be there, and what to do."""
    phrases: Mapping[str, str] = field(default_factory=dict)
    """Fixes in its words, where a value has another form, too."""
    passes: Callable[[str], bool] = lambda path: False
    """True for a key without a rule that means the same here."""
    no_settings: frozenset[str] = frozenset()
    """Names of keys that are no settings, wherever they stand."""

    @cached_property
    def by_path(self) -> Mapping[str, list[KeyRule]]:
        found: dict[str, list[KeyRule]] = {}
        for rule in self.rules:
            found.setdefault(rule.path, []).append(rule)
        return found

    def translate(self, mapping: Mapping[str, object]) -> Translation:
        """Translates a file, with keys of this project among it, which count where both say something."""
        file = _without(self.no_settings, unshared(mapping))
        theirs = {key for key in file if key in self.scalars or (key in self.blocks and isinstance(file[key], Mapping | None))}
        result = Translation({key: value for key, value in file.items() if key not in theirs})
        leaves = [leaf for key in sorted(theirs) for leaf in self._leaves(file[key], key)]
        empty = [path for path, value in leaves if value is None and path in self.by_path]
        result.without_effect += [Note(path, None, "null is the same as leaving it out") for path in sorted(empty)]
        written = [(path, value, "") for path, value in leaves if path not in empty]
        given = {path for path, _, _ in written}
        for path, value in self.left_out(file).items():
            if path not in given:
                write_at(file, tuple(path.split(".")), value)
                written.append((path, value, f"{self.name}'s default; "))
        needed = {path: message for path, message in self.needed.items() if at(file, path) is None}
        result.lacking += [Note(path, None, message) for path, message in needed.items()]
        own = [(path, value) for path, value, _ in written if path not in self.by_path and self.passes(path)]
        for path, value in own:
            write_at(result.mapping, tuple(path.split(".")), value)
        ours = copy.deepcopy(result.mapping)
        for path, value, why in sorted(written, key=lambda entry: entry[0]):
            if (path, value) not in own:
                self._apply(path, value, why, file, ours, result)
        return result

    def _leaves(self, value: object, path: str) -> Iterator[tuple[str, object]]:
        """Yields path and value of every key that a rule knows as a whole, or that has nothing below it."""
        if isinstance(value, Mapping) and value and path not in self.by_path:
            for name, inner in value.items():
                yield from self._leaves(inner, f"{path}.{name}")
        elif value not in (None, {}) or path not in self.blocks:
            yield path, value

    def _apply(self, path: str, value: object, why: str, file: File, ours: Mapping[str, object], result: Translation) -> None:
        rule = next((rule for rule in self.by_path.get(path, ()) if rule.about(value, file)), None)
        if rule is None:
            result.lacking.append(Note(path, value, self._unread(path)))
            return
        kind, message = rule.kind, f"{why}{rule.note}"
        for target, read in rule.to(value, file).items():
            place = tuple(target.split("."))
            other = value_at(ours, place)
            if other is None:
                write_at(result.mapping, place, read)
                result.moved[target] = path
            elif other != read:
                message = f"{message}; {target} is given, too, and counts"
        notes = {"alias": result.aliased, "without effect": result.without_effect, "lacking": result.lacking}
        notes[kind].append(Note(path, value, message, told=rule.told and not why))

    def _unread(self, path: str) -> str:
        if path in self.by_path:
            return "is no value that can be translated"
        near = did_you_mean(path, self.by_path, "", cutoff=0.9)
        return f"nothing here is known to mean the same: remove it{f'; {near}' if near else ''}"

    def words(self, moved: Mapping[str, str], written: Mapping[str, object], read: Mapping[str, object]) -> dict[str, str]:
        """Returns the words of a file of this framework for keys here."""
        return words_of(moved, written, read, self.left_out(written)) | dict(self.phrases)


def _without(names: frozenset[str], value: Any) -> Any:
    if not names or not isinstance(value, Mapping):
        return value
    return {key: _without(names, inner) for key, inner in value.items() if key not in names}


def words_of(
    moved: Mapping[str, str], written: Mapping[str, object], read: Mapping[str, object], left_out: Mapping[str, object]
) -> dict[str, str]:
    """`moved`: key here -> key there. `written`, `read`: the file before and after. A key whose value was computed keeps its name
    beside the other: the note has its own value."""
    words = {}
    for ours, theirs in moved.items():
        given = value_at(written, tuple(theirs.split(".")))
        same = (left_out.get(theirs) if given is None else given) == value_at(read, tuple(ours.split(".")))
        words[ours] = theirs if same else f"{ours} (of {theirs})"
    return words
