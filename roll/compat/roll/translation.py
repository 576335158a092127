"""A mapping as ROLL's users write it, turned into the mapping that the dataclasses read, with a note on every change: keys that
are not read as they stand (the tables keys_*.py), and, for a file of ROLL, keys that mean something else to ROLL (readings*.py).

Pure: the caller's knowledge of classes and environments comes in as functions. docs_roll/roll_compatibility.md is made from both.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, get_args, get_origin

from roll.compat.roll import (
    keys_distillation,
    keys_images,
    keys_roles,
    keys_rows,
    keys_run,
    keys_tasks,
    keys_verl,
    readings,
    readings_agentic,
)
from roll.compat.roll.keys_tasks import NOT_HERE, YOUR_OWN
from roll.compat.roll.pipelines import CONFIGS
from roll.compat.roll.readings import Path, Reading
from roll.compat.roll.readings_agentic import meant
from roll.compat.roll.rule import DROP, KeyRule, remove, unshared, value_at, write_at
from roll.core.configs.fields import default_of, hints
from roll.core.configs.problems import Note, did_you_mean, shown_value
from roll.core.configs.rlvr import RLVRConfig

_ROLLS: tuple[KeyRule, ...] = (
    *keys_images.IMAGES,
    *keys_distillation.RULES,
    *keys_rows.RULES,
    *keys_run.RULES,
    *keys_roles.RULES,
    *keys_tasks.RULES,
)
RULES: tuple[KeyRule, ...] = (*_ROLLS, *keys_verl.VERL)
"""All rules; the first that fits counts."""
READINGS: tuple[Reading, ...] = (*readings.BOTH, *readings.RLVR, *readings_agentic.AGENTIC)

_BY_NAME: dict[str, list[KeyRule]] = defaultdict(list)
for _each in RULES:
    _BY_NAME[_each.path.rpartition(".")[2]].append(_each)

_PASSES = 3
NO_SUCH = "there is no such environment"
_CLASS_KEYS = ("worker_cls", "env_manager_cls", "group_filter_cls")


@dataclass(slots=True)
class Translation:
    mapping: dict[str, Any]
    aliased: list[Note] = field(default_factory=list)
    without_effect: list[Note] = field(default_factory=list)
    lacking: list[Note] = field(default_factory=list)
    moved: dict[str, str] = field(default_factory=dict)
    """Written key of each key that is read instead."""

    def after(self, first: Translation) -> Translation:
        """Returns this one, made of the mapping of `first`, with the notes of both."""
        moved = first.moved | {target: first.moved.get(source, source) for target, source in self.moved.items()}
        return Translation(
            self.mapping,
            first.aliased + self.aliased,
            first.without_effect + self.without_effect,
            first.lacking + self.lacking,
            moved,
        )


@dataclass(frozen=True, slots=True)
class _Hit:
    path: tuple[str, ...]
    value: Any
    rule: KeyRule
    targets: Mapping[str, object]
    """Keys and values that the rule writes instead."""


def translate(
    mapping: Mapping[str, object],
    cls: object,
    *,
    has_class: Callable[[str], bool] = lambda path: True,
    has_environment: Callable[[str], bool] = lambda name: True,
    written_for_roll: bool = False,
) -> Translation:
    """Translates `mapping` for the dataclass `cls`.

    `has_class`: whether a dotted path below `roll.` leads to a class. `has_environment`: whether there is an `env_type`.
    `written_for_roll`: null where a value is needed means the default, and the rest is read as `meant` says."""
    result = Translation(unshared(mapping))
    for _ in range(_PASSES):  # a value under its new name may itself be one that is read as another
        if not _apply(list(_hits(result.mapping, cls, (), result.mapping)), cls, result):
            break
    for note in result.lacking:
        if _is_required(cls, path := tuple(note.key.split("."))):  # or it would be missing besides
            write_at(result.mapping, path, note.value)
    if written_for_roll:
        for path, kind in list(_unwanted_nulls(result.mapping, cls, ())):
            remove(result.mapping, path)
            result.aliased.append(Note(".".join(path), None, f"the default: null is no {kind}"))
        for each in list(meant(result.mapping, mapping, has_field(cls, ("custom_envs",)))):
            if each.target is DROP:
                remove(result.mapping, each.path)
            else:
                write_at(result.mapping, each.path, copy.deepcopy(each.target))
            result.aliased.append(Note(".".join(each.path), each.value, each.note))
    known = {name: value for name, value in result.mapping.items() if has_field(cls, (name,))}
    told = {note.key for note in result.lacking}
    result.lacking += [note for note in _absent(known, (), has_class, has_environment) if note.key not in told]
    return result


def _apply(hits: list[_Hit], cls: object, result: Translation) -> bool:
    """Removes the keys that the rules are about, then writes the keys that are read instead. Returns True if anything changed."""
    written = copy.deepcopy(result.mapping)
    notes = {"alias": result.aliased, "without effect": result.without_effect, "lacking": result.lacking}
    for hit in hits:
        remove(result.mapping, hit.path)
        _prune(result.mapping, hit.path[:-1], cls)
    for hit in hits:
        source = ".".join(hit.path)
        kind, message, told = hit.rule.kind, hit.rule.note, hit.rule.told
        for target, value in hit.targets.items():
            path = _target(target, hit.path)
            name, theirs = ".".join(path), value_at(written, path)
            if value is DROP:
                remove(result.mapping, path)
            elif path == hit.path or theirs is None or theirs == value:
                if has_field(cls, path):
                    write_at(result.mapping, path, value)
                    result.moved[name] = result.moved.get(source, source)
            else:
                kind, told = "without effect", told or hit.rule.outvoted_told
                message = f"{name} = {shown_value(name, theirs, 60)} is given, too, and counts"
        notes[kind].append(Note(result.moved.get(source, source), hit.value, message, told=told))
    return bool(hits)


def _hits(mapping: Mapping[str, object], cls: object, above: tuple[str, ...], file: Mapping[str, object]) -> Iterator[_Hit]:
    """Yields rules that apply, the outer key before the inner; a key that a rule removes is not looked into."""
    chosen = {name: _rule(mapping, cls, (*above, str(name)), file) for name in mapping}
    written = {name: rule.to(mapping[name], file if rule.whole else mapping) for name, rule in chosen.items() if rule}
    gone = {target[1:] for targets in written.values() for target, value in targets.items() if value is DROP}
    for name, value in mapping.items():
        path, rule = (*above, str(name)), chosen[name]
        if rule is not None:
            yield _Hit(path, value, rule, written[name])
        elif isinstance(value, Mapping) and name not in gone:
            known = has_field(cls, (str(name),))
            inner = _chosen_block(cls, str(name), mapping) if known else None
            if known and _block(cls, str(name)) is not None and _is_named(cls, str(name)):
                for key, entry in value.items():
                    if isinstance(entry, Mapping):
                        yield from _hits(entry, inner, (*path, str(key)), file)
            else:
                yield from _hits(value, inner, path, file)


def _rule(block: Mapping[str, object], cls: object, path: tuple[str, ...], file: Mapping[str, object]) -> KeyRule | None:
    """Returns the first rule about a key of `block`, whose dataclass is `cls`. A key that says its default,
    as most of a run's own config.yaml do, says nothing: no rule is about it."""
    name, known = path[-1], has_field(cls, path[-1:])
    if known and _is_default(cls, name, block.get(name)):
        return None
    for rule in _BY_NAME.get(name, ()):
        about = rule.matches(path) and rule.about(block.get(name), file if rule.whole else block)
        if about and not (known and rule.for_absent):
            return rule
    return None


def _is_default(cls: Any, name: str, value: object) -> bool:
    default = next(default_of(item) for item in fields(cls) if item.name == name)
    return value is default or (type(value) is type(default) and value == default)


def _absent(
    block: Mapping[str, object], above: tuple[str, ...], has_class: Callable[[str], bool], has_environment: Callable[[str], bool]
) -> Iterator[Note]:
    """Yields notes on classes of ROLL and environments that are not here. Their keys stay: the file loads, but cannot start."""
    for name, value in block.items():
        path = (*above, str(name))
        if isinstance(value, Mapping):
            yield from _absent(value, path, has_class, has_environment)
        elif name in _CLASS_KEYS and isinstance(value, str) and value.startswith("roll.") and not has_class(value):
            yield Note(".".join(path), value, f"there is no {value.rpartition('.')[2]}; write the dotted path of your own class")
        elif name == "env_type" and above[:1] == ("custom_envs",) and isinstance(value, str) and not has_environment(value):
            yield Note(".".join(path), value, f"{NOT_HERE.get(value, NO_SUCH)}; {YOUR_OWN}")


def _unwanted_nulls(block: Mapping[str, object], cls: object, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    for item in fields(cls) if is_dataclass(cls) else ():
        value, hint, path = block.get(item.name), hints(cls)[item.name], (*above, item.name)
        if item.name in block and value is None and hint is not Any and type(None) not in get_args(hint):
            yield path, "value here"
        inner = _block(cls, item.name)
        if isinstance(value, Mapping) and inner is not None:
            entries = value.items() if _is_named(cls, item.name) else [(None, value)]
            for name, entry in entries:
                if isinstance(entry, Mapping):
                    yield from _unwanted_nulls(entry, inner, path if name is None else (*path, str(name)))


def _block(cls: object, name: str) -> object:
    """Returns the dataclass of the block (or of the named blocks) `name`, if it is one."""
    hint = hints(cls)[name]
    return next((member for member in (hint, *get_args(hint)) if is_dataclass(member)), None)


def _chosen_block(cls: Any, name: str, block: Mapping[str, object]) -> object:
    """Returns the dataclass of a block, as `_block` finds it; a free mapping whose keys another key of the block chooses has the
    class of that choice."""
    item = next(item for item in fields(cls) if item.name == name)
    selector, schemas = item.metadata.get("schema_by", ("", {}))
    chosen = block.get(selector)
    return (schemas.get(chosen) if isinstance(chosen, str) else None) if selector else _block(cls, name)


def _is_named(cls: object, name: str) -> bool:
    return get_origin(hints(cls)[name]) is dict


def has_field(cls: object, path: tuple[str, ...]) -> bool:
    """Returns True if the dataclass tree has this key. Everything below a free mapping exists; `cls` None has no key."""
    if not path or cls is None:
        return not path
    name, below = path[0].removesuffix("[]"), path[1:]
    if name not in hints(cls):
        return False
    inner, named = _block(cls, name), _is_named(cls, name)
    if inner is None:
        return not below or named
    return has_field(inner, below[1:] if named else below)


def _is_required(cls: object, path: tuple[str, ...]) -> bool:
    """Returns True for a key of the dataclass tree without a default."""
    if cls is None or path[0] not in hints(cls):
        return False
    below = path[2:] if _is_named(cls, path[0]) else path[1:]
    needed = any(default_of(item) is MISSING for item in fields(cls) if item.name == path[0])  # type: ignore[arg-type]
    return _is_required(_block(cls, path[0]), below) if below else needed and len(path) == 1


def _target(target: str, source: tuple[str, ...]) -> tuple[str, ...]:
    if target.startswith("."):
        return (*source[:-1], *target[1:].split("."))
    return tuple(target.split("."))


def _prune(mapping: dict[str, object], path: tuple[str, ...], cls: object) -> None:
    """Removes a block that rules have emptied, if it has no field."""
    if path and not has_field(cls, path) and value_at(mapping, path) == {}:
        remove(mapping, path)
        _prune(mapping, path[:-1], cls)


def _readings(cls: object) -> tuple[Reading, ...]:
    return (*readings.BOTH, *(readings.RLVR if cls is RLVRConfig else readings_agentic.AGENTIC))


def read_as_roll(mapping: Mapping[str, object], cls: object) -> Translation:
    """Translates `mapping`, as ROLL's users write it for the dataclass `cls`, with ROLL's meaning."""
    result = Translation(unshared(mapping))
    for reading in _readings(cls):
        for source, targets in list(reading.reads(result.mapping)):
            value = value_at(mapping, source)
            free = {
                path: new for path, new in targets.items() if new is DROP or path == source or value_at(mapping, path) is None
            }
            for path, new in free.items():
                if new is DROP:
                    remove(result.mapping, path)
                else:
                    write_at(result.mapping, path, copy.deepcopy(new))
                    result.moved[".".join(path)] = ".".join(source)
            kept = [_told(source, path, new) for path, new in free.items() if new is not DROP]
            if kept:
                note = f"read as {', '.join(kept)}: {reading.note}"
                result.aliased.append(Note(".".join(source), value, note, told=reading.told))
            elif free:
                result.without_effect.append(Note(".".join(source), value, reading.note))
    return result


def not_read_as_roll(mapping: Mapping[str, object], cls: object) -> list[Note]:
    """Returns notes for a file that is not read with ROLL's meaning."""
    return [
        Note(".".join(source), value_at(mapping, source), f"with --compat it has ROLL's meaning: {reading.note}", told=True)
        for reading in _readings(cls)
        if reading.told
        for source, _ in reading.reads(mapping)
    ]


def _told(source: Path, path: Path, value: object) -> str:
    """Returns the key and value read instead, by its path from the block of the written key."""
    block = len(source) - 1
    return str(value) if path == source else f"{'.'.join(path[block:] if path[:block] == source[:-1] else path)}: {value}"


def variables_of(mapping: Mapping[str, object], references: Collection[str], included: Collection[str]) -> set[str]:
    """Keys that are no settings, neither of this project nor of ROLL: `${...}` refers to them, or an included file brings them.

    `included`: top-level keys of the files in the defaults list. One that is spelt almost like a key that is not given is none:
    a typo."""
    known = {*(name for cls in CONFIGS.values() for name in hints(cls)), *(rule.path.partition(".")[0] for rule in _ROLLS)}
    absent = known - mapping.keys()
    return {
        key
        for key in mapping.keys() - known
        if key in references or (key in included and not did_you_mean(key, absent, cutoff=0.85))
    }
