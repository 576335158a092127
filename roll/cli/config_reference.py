"""The reference page of all configuration keys: `python -m roll.cli.config_reference > docs_roll/configuration.md`.

It is made from the dataclasses themselves; a test checks that the page in the repository is current.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, is_dataclass
from typing import Any, Literal, get_args, get_origin

from roll.configs.fields import default_of
from roll.configs.rlvr import RLVRConfig
from roll.configs.roll_names import ADVICE
from roll.configs.schema import walk

INTRODUCTION = """\
# Configuration

<!-- Made by `python -m roll.cli.config_reference > docs_roll/configuration.md`. -->

Every key there is. Names are ROLL's; unknown keys are refused with the nearest name, wrong types and ranges with the key and the
rule. A configuration is composed by Hydra from the YAML files of `--config_path` and `key=value` overrides, and written,
resolved, to `config.yaml` in the run's folder. `<name>` stands for a name of your own.
"""

NOT_HERE = """\
## Keys of ROLL that are not here

Each is refused, with this advice.

| key | what to do |
|---|---|
"""

HEADER = "| key | type | default | meaning |\n|---|---|---|---|\n"


def page(cls: Any) -> str:
    """The whole page, for a configuration class."""
    tables: dict[str, list[str]] = {}
    documented: dict[tuple[Any, str], str] = {}
    defaults: dict[str, Any] = {}
    repeated: list[str] = []
    back_ends: dict[str, Any] = {}
    for path, item, hint in walk(cls):
        if any(path.startswith(f"{block}.") for block in repeated):
            continue
        above, _, key = path.rpartition(".")
        default = defaults[path] = _default(item, defaults.get(above))
        kind, meaning = _type(hint), item.metadata["help"]
        block = next((member for member in (hint, *get_args(hint)) if is_dataclass(member)), None)
        if block is not None:
            name = f"{path}.<name>" if get_origin(hint) is dict else path
            known = documented.setdefault((block, repr(default)), name)
            kind = ("list of " if get_origin(hint) is list else "") + f"[block](#{_anchor(known)})"
            if known != name:
                repeated.append(name)
                meaning += f" As `{known}`."
        back_ends |= item.metadata.get("schema_by", ("", {}))[1]
        limits = str(item.metadata["bounds"])
        meaning += f" ({limits})" if limits else ""
        shown = "" if is_dataclass(default) else _value(default)
        tables.setdefault(above, []).append(f"| `{key}` | {kind} | {shown} | {_cell(meaning)} |\n")
    return "\n".join([INTRODUCTION, *_sections(tables), *_back_ends(back_ends), NOT_HERE + "".join(_advice())])


def _sections(tables: dict[str, list[str]]) -> Iterator[str]:
    for name, rows in tables.items():
        yield (f"## `{name}`\n\n" if name else "## Top level\n\n") + HEADER + "".join(rows)


def _back_ends(classes: dict[str, Any]) -> Iterator[str]:
    for name, cls in classes.items():
        rows = [
            f"| `{path}` | {_type(hint)} | {_value(default_of(item))} | {_cell(item.metadata['help'])} |\n"
            for path, item, hint in walk(cls)
        ]
        yield f"## `strategy_config` of `{name}`\n\n" + HEADER + "".join(rows)


def _advice() -> Iterator[str]:
    for key, advice in sorted(ADVICE.items()):
        yield f"| `{key}` | {_cell(advice)} |\n"


def _default(item: Field[Any], above: Any) -> Any:
    """What the block's own default says, else the field's: an engine's `strategy_name` is not a trainer's."""
    return getattr(above, item.name) if is_dataclass(above) else default_of(item)


def _type(hint: Any) -> str:
    origin, members = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " \\| ".join(f"`{value}`" for value in members)
    if origin is dict:
        return f"mapping to {_type(members[1])}"
    if origin is list:
        return f"list of {_type(members[0])}"
    if members:
        return " \\| ".join(_type(member) for member in members)
    names = {bool: "true \\| false", int: "integer", float: "number", str: "text", type(None): "null", Any: "anything"}
    return names.get(hint, "block")


def _value(default: Any) -> str:
    if default is MISSING:
        return "required"
    if isinstance(default, float):
        return f"`{default:g}`"
    if default is None or isinstance(default, bool):
        return {None: "`null`", True: "`true`", False: "`false`"}[default]
    return f"`{default}`" if default != "" else ""


def _anchor(path: str) -> str:
    """As GitHub makes it from a heading."""
    return path.lower().replace(".", "").replace("<", "").replace(">", "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.stdout.write(page(RLVRConfig))
