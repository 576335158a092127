"""Plain values, as JSON has them, and configurations as such."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

from roll.core.configs.dotted_path import dotted_path

JsonObject: TypeAlias = dict[str, Any]
"""An object that `json` writes, and reads as it was."""
JsonMapping: TypeAlias = Mapping[str, Any]
"""The same, to be read."""


def to_mapping(config: Any) -> JsonObject:
    """Returns the configuration as plain values: `load_config(type(config), to_mapping(config)) == config`. A function or class
    given as an object becomes its dotted path."""
    return {item.name: _plain(getattr(config, item.name)) for item in fields(config)}


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return to_mapping(value)
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return dotted_path(value) if callable(value) else value
