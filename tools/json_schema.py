"""JSON schemas of the configuration files, for editors: `python tools/json_schema.py examples/config`.

Made from the dataclasses; a test checks that the files in the repository are current. They know this project's own keys, not the
names that are accepted from ROLL, and not rules that join several keys.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from roll.cli.completion import names_or_path
from roll.compat.roll.pipelines import CONFIGS
from roll.core.configs.dotted_path import DOTTED_PATH
from roll.core.configs.fields import default_of, hints

SCHEMAS: dict[str, type[Any]] = {f"{name}.schema.json": cls for name, cls in CONFIGS.items()}

_DIALECT = "http://json-schema.org/draft-07/schema#"
# Hydra resolves these before the configuration is read.
_REFERENCE = {"type": "string", "pattern": r"\$\{.+\}"}
_HYDRA = {
    "defaults": {"type": "array", "description": "Hydra: files that this one is laid over."},
    "hydra": {"type": "object", "description": "Hydra's own settings."},
}
# YAML 1.1 reads 1e-6 as text; it is meant, and taken, as a number.
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|^[+-]?\.?inf$"
_SCALARS: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"anyOf": [{"type": "number"}, {"type": "string", "pattern": _NUMBER}]},
    str: {"type": "string"},
    NoneType: {"type": "null"},
    Any: {},
}
# A built-in name, or a function of the user's own.
_NAMED = ("pg_variant", "adv_estimator")
_PATH = {"type": "string", "pattern": f"^{DOTTED_PATH.pattern}$"}
_LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def json_schema(cls: type[Any]) -> dict[str, Any]:
    """The schema of a configuration class (draft 7)."""
    definitions: dict[str, Any] = {"reference": _REFERENCE}
    definitions |= {key: {"anyOf": [{"enum": list(names_or_path(cls, key))}, _PATH]} for key in _NAMED}
    block = _block(cls, None, definitions)
    block["properties"] |= _HYDRA
    return {"$schema": _DIALECT, "title": cls.__name__, **block, "definitions": definitions}


def _block(cls: Any, defaults: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """`defaults`: the instance that a mapping is laid over; None means the defaults of `cls`."""
    properties: dict[str, Any] = {}
    choices: list[dict[str, Any]] = []
    for item in fields(cls):
        default = default_of(item) if defaults is None else getattr(defaults, item.name)
        properties[item.name] = _property(item, hints(cls)[item.name], default, definitions)
        if "schema_by" in item.metadata:
            choices += _by_choice(item, definitions)
    needed = [item.name for item in fields(cls) if defaults is None and default_of(item) is MISSING]
    block: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return block | ({"required": needed} if needed else {}) | ({"allOf": choices} if choices else {})


def _by_choice(item: Field[Any], definitions: dict[str, Any]) -> list[dict[str, Any]]:
    """One condition for each value of the key that chooses what may be in this one."""
    selector, schemas = item.metadata["schema_by"]
    return [
        {
            "if": {"properties": {selector: {"const": choice}}, "required": [selector]},
            "then": {"properties": {item.name: _or_reference(_defined(cls, None, definitions))}},
        }
        for choice, cls in schemas.items()
    ]


def _property(item: Field[Any], hint: Any, default: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    limits = {_LIMITS[name]: getattr(item.metadata["bounds"], name) for name in _LIMITS}
    shape = _type(hint, default, {name: limit for name, limit in limits.items() if limit is not None}, definitions)
    if item.name in _NAMED:
        shape = {"$ref": f"#/definitions/{item.name}"}
    shown = {} if default is MISSING or is_dataclass(default) or not _is_json(default) else {"default": default}
    return {"description": item.metadata["help"], **shown, **_or_reference(shape)}


def _type(hint: Any, default: Any, limits: dict[str, float], definitions: dict[str, Any]) -> dict[str, Any]:
    origin, members = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        return _defined(hint, default if is_dataclass(default) else None, definitions)
    if origin is Literal:
        return {"enum": list(members)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _or_reference(_type(members[1], None, limits, definitions))}
    if origin is list:
        return {"type": "array", "items": _or_reference(_type(members[0], None, limits, definitions))}
    if members:
        written = [_type(member, default, limits, definitions) for member in members if get_origin(member) is not Callable]
        return written[0] if len(written) == 1 else {"anyOf": written}
    if hint is float:
        number, text = _SCALARS[float]["anyOf"]
        return {"anyOf": [number | limits, text]}
    return dict(_SCALARS[hint]) | (limits if hint is int else {})


def _defined(cls: Any, defaults: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """A reference to the definition of a block; one that has defaults of its own (an engine's back end) is another one."""
    block = _block(cls, defaults, definitions)
    names = (cls.__name__ if number == 1 else f"{cls.__name__}{number}" for number in range(1, len(definitions) + 2))
    name = next(name for name in names if definitions.get(name, block) == block)
    definitions[name] = block
    return {"$ref": f"#/definitions/{name}"}


def _or_reference(shape: dict[str, Any]) -> dict[str, Any]:
    reference = {"$ref": "#/definitions/reference"}
    if shape == {}:
        return shape
    if "anyOf" in shape:
        return {"anyOf": [*shape["anyOf"], reference]}
    return {"anyOf": [shape, reference]}


def _is_json(value: Any) -> bool:
    return not (isinstance(value, float) and not math.isfinite(value))


def text(cls: type[Any]) -> str:
    return json.dumps(json_schema(cls), indent=1) + "\n"


if __name__ == "__main__":
    for file, configuration in SCHEMAS.items():
        (Path(sys.argv[1]) / file).write_text(text(configuration))
