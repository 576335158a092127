"""One statement about a key of ROLL's YAML files: read under another name or value, without effect here, or not there at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from roll.core.configs.fields import hints

Kind = Literal["alias", "without effect", "lacking"]
Siblings = Mapping[str, Any]
"""The block that the key is written in."""

ROLES = ("actor_train", "actor_infer", "reference", "critic")

Translate = Callable[[Any, Siblings], Mapping[str, Any]]
"""From the value and its block to the values to write instead, by dotted path; `.name` is in the same block."""

# Reasons that several blocks share.
RUN_FOLDER = "everything of a run is written to <output_dir>/<exp_name>"
NO_CRITIC = "no critic is trained: only adv_estimator: gae has one"
DEAD_IN_ROLL = "ROLL does not read it either"
ENVIRONMENT = "no process's environment is changed: set the variables before the start"
WHOLE_CHECKPOINTS = "checkpoints are always whole: safetensors, with the optimiser, resumable on other devices"
SPEED = "it changes the speed only, and is not used"
MEMORY = "it saves memory only, and is not used"


class _Drop:
    """Stands for "remove this key" among the targets of a rule."""


DROP = _Drop()


@dataclass(frozen=True, slots=True)
class KeyRule:
    """Fate of a key, or of some of its values."""

    path: str
    """Dotted; `<role>` is any of `ROLES`, `<name>` a name of the user's own. Deeper keys go with it."""
    kind: Kind
    note: str
    """The reason, and the replacement or a remedy."""
    to: Translate = lambda value, block: {}
    """The keys and values to write instead. A key of this project that the user wrote stays."""
    when: Callable[[Any, Siblings], bool] | None = None
    """Selects the values that the rule is about; None: all."""
    values: str = ""
    """The values that `when` holds for, as text for the reference page."""
    absent: bool = False
    """The rule is for a key that has no field here although it has a `when`."""
    told: bool = False
    """As `Note.told`."""
    outvoted_told: bool = False
    """As `told`, where another given key counts instead: the writer expects what does not happen."""
    whole: bool = False
    """The second argument of its functions is the whole file instead of the key's block."""

    def matches(self, path: tuple[str, ...]) -> bool:
        pattern = self.path.split(".")
        if path[0] == "teachers" and len(path) > 2:  # a teacher is a frozen role
            path = ("reference", *path[2:])
        return len(pattern) == len(path) and all(
            wanted in (name, "<name>") or (wanted == "<role>" and name in ROLES)
            for wanted, name in zip(pattern, path, strict=True)
        )

    @property
    def for_absent(self) -> bool:
        """True if the rule is unnecessary as soon as a field of that name exists."""
        return self.absent or self.when is None

    def about(self, value: object, block: Siblings) -> bool:
        return self.when is None or self.when(value, block)


def renamed(path: str, to: str, note: str = "") -> KeyRule:
    """Makes a rule that reads the same value under another name."""
    return KeyRule(path, "alias", f"read as `{to.lstrip('.')}`" + (f"; {note}" if note else ""), lambda value, block: {to: value})


def ignored(path: str, why: str) -> KeyRule:
    return KeyRule(path, "without effect", why)


def lacking(path: str, note: str) -> KeyRule:
    return KeyRule(path, "lacking", note)


def off_or_lacking(path: str, off: tuple[object, ...], note: str) -> tuple[KeyRule, KeyRule]:
    """Makes the rules of a switch that may be written as long as it is off."""
    harmless = "it changes nothing as it stands"
    return (
        KeyRule(path, "without effect", harmless, when=lambda v, b: v in off, values=_shown(off), absent=True),
        KeyRule(path, "lacking", note, when=lambda v, b: v not in off, values="else", absent=True),
    )


def of_files(kind: str, holds: Callable[[Siblings], bool], *rules: KeyRule) -> tuple[KeyRule, ...]:
    """Rules of one kind of files alone. The second argument of their functions is the whole file."""

    def of_kind(rule: KeyRule) -> KeyRule:
        values = f"{kind}, {rule.values}" if rule.values else kind
        return replace(rule, when=lambda v, f: holds(f) and rule.about(v, f), values=values, absent=True, whole=True)

    return tuple(map(of_kind, rules))


def value_read_as(
    path: str,
    values: tuple[object, ...],
    to: object,
    note: str,
    *,
    unless: tuple[object, str] | None = None,
    told: bool = False,
) -> KeyRule:
    """Some values of a key that is here mean another one. `unless`: (class, field) that may accept them itself by now."""
    name = f".{path.rpartition('.')[2]}"
    accepted = choices(*unless) if unless else ()
    meant = tuple(value for value in values if value not in accepted)
    about = lambda v, b: any(v is m or v == m for m in meant)  # noqa: E731
    return KeyRule(path, "alias", note, lambda v, b: {name: to}, about, _shown(meant), told=told)


def _shown(values: tuple[object, ...]) -> str:
    """Returns the value as YAML writes it. 1 and 1.0 are one value."""
    words = {None: "null", True: "true", False: "false"}
    texts = [words[value] if value is None or isinstance(value, bool) else str(value) for value in values]
    return ", ".join(dict.fromkeys(text.removesuffix(".0") for text in texts))


def choices(cls: object, field: str) -> tuple[object, ...]:
    """Returns the values of a `Literal` field."""
    hint = hints(cls)[field]
    return get_args(hint) if get_args(hint) else ()


def value_at(mapping: Mapping[str, object], path: tuple[str, ...]) -> object:
    value: Any = mapping
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def remove(mapping: dict[str, object], path: tuple[str, ...]) -> None:
    block = value_at(mapping, path[:-1])
    if isinstance(block, dict):
        block.pop(path[-1], None)


def unshared(value: Any) -> Any:
    """Returns a copy in which no block stands in two places, as one that a user's code, or an anchor of YAML, gives to several
    keys does: each key is changed alone."""
    if isinstance(value, Mapping):
        return {key: unshared(each) for key, each in value.items()}
    return [unshared(each) for each in value] if isinstance(value, list) else value


def write_at(mapping: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """A last name with `[]` is a list that the value is added to."""
    for name in path[:-1]:
        inner = mapping.get(name)
        mapping[name] = mapping = inner if isinstance(inner, dict) else {}
    if path[-1].endswith("[]"):
        name = path[-1].removesuffix("[]")
        mapping[name] = [*(mapping.get(name) or []), value]
    else:
        mapping[path[-1]] = value
