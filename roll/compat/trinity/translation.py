"""A mapping as Trinity-RFT's users write it, turned into keys of this project, with a note on every key. Pure."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping

from roll.compat.roll.keys_verl import VERL
from roll.compat.roll.rule import KeyRule, unshared, value_at, write_at
from roll.compat.roll.translation import Translation
from roll.compat.trinity.keys import BLOCKS, IDENTIFYING, LEFT_OUT, NEEDED, RULES, SCALARS, at
from roll.core.configs.problems import Note

_BY_PATH: dict[str, list[KeyRule]] = defaultdict(list)
for _each in RULES:
    _BY_PATH[_each.path].append(_each)


def is_trinity(mapping: Mapping[str, object]) -> bool:
    return any(isinstance(mapping.get(block), Mapping) for block in IDENTIFYING)


def translate(mapping: Mapping[str, object]) -> Translation:
    """Translates a file of Trinity's, with keys of this project among it, which count where both say something."""
    file = unshared(mapping)
    theirs = {key for key in file if key in SCALARS or (key in BLOCKS and isinstance(file[key], Mapping | None))}
    result = Translation({key: value for key, value in file.items() if key not in theirs})
    leaves = [leaf for key in theirs for leaf in _leaves(file[key], key)]
    empty = [path for path, value in leaves if value is None and path in _BY_PATH]
    result.without_effect += [Note(path, None, "null is the same as leaving it out") for path in sorted(empty)]
    written = [(path, value, "") for path, value in leaves if path not in empty]
    given = {path for path, _, _ in written}
    for path, value in LEFT_OUT.items():
        if path not in given:
            write_at(file, tuple(path.split(".")), value)
            written.append((path, value, "Trinity's default; "))
    needed = {path: message for path, message in NEEDED.items() if at(file, path) is None}
    result.lacking += [Note(path, None, message) for path, message in needed.items()]
    ours = copy.deepcopy(result.mapping)
    for path, value, why in sorted(written, key=lambda entry: entry[0]):
        _apply(path, value, why, file, ours, result)
    return result


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    """Yields path and value of every key that a rule knows as a whole, or that has nothing below it."""
    if isinstance(value, Mapping) and value and path not in _BY_PATH:
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}")
    elif value not in (None, {}) or path not in BLOCKS:
        yield path, value


def _apply(
    path: str, value: object, why: str, file: Mapping[str, object], ours: Mapping[str, object], result: Translation
) -> None:
    rule = next((rule for rule in _BY_PATH.get(path, ()) if rule.about(value, file)), None)
    if rule is None:
        known = path in _BY_PATH
        message = "is no value that can be translated" if known else "nothing here is known to mean the same: remove it"
        result.lacking.append(Note(path, value, message))
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
    notes[kind].append(Note(path, value, message))


_VERL = {rule.path for rule in VERL}
PHRASES = {
    "resume_from_checkpoint: auto": "continue_from_checkpoint: true",
    "resume_from_checkpoint: false": "continue_from_checkpoint: false",
    "resume_from_checkpoint": "continue_from_checkpoint",
    "auto or false": "true or false",
    "output_dir": "checkpoint_root_dir/project",
}
"""Fixes in Trinity's words, where a value has another form, too."""


def words_of(
    moved: Mapping[str, str], written: Mapping[str, object], read: Mapping[str, object], of_trinity: bool
) -> dict[str, str]:
    """`moved`: key here -> key there. `written`, `read`: the file before and after. A key whose value was computed keeps its name
    beside the other: the note has its own value."""
    words = {}
    for ours, theirs in moved.items():
        if of_trinity or theirs in _VERL:
            given = value_at(written, tuple(theirs.split(".")))
            same = (LEFT_OUT.get(theirs) if given is None else given) == value_at(read, tuple(ours.split(".")))
            words[ours] = theirs if same else f"{ours} (of {theirs})"
    return words | (PHRASES if of_trinity else {})
