"""The reference page of all configuration keys: `python tools/config_reference.py > docs_roll/configuration.md`.

It is made from the dataclasses themselves; a test checks that the page in the repository is current.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, get_args, get_origin

from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.arguments import STRATEGY_CONFIGS
from roll.core.configs.fields import default_of, hints, walk
from roll.core.configs.rlvr import RLVRConfig
from roll.plan.rows_config import DPOConfig, SFTConfig
from roll.plan.rules.rows_rules import OF_EVERY_PIPELINE

INTRODUCTION = """\
# Configuration

<!-- Made by `python tools/config_reference.py > docs_roll/configuration.md`. -->

Every key there is. Most names are ROLL's; [roll_compatibility](roll_compatibility.md) says what becomes of its others. Unknown
keys are refused with the nearest name, wrong types and ranges with the key and the rule. A configuration is composed by Hydra
from the YAML files of `--config_path` and `key=value` overrides, and written, resolved, to `config.yaml` in the run's folder.
`<name>` stands for a name of your own.
"""

HEADER = "| key | type | default | meaning |\n|---|---|---|---|\n"


def page(rlvr: Any, agentic: Any, sft: Any, dpo: Any) -> str:
    """The whole page, for the configuration classes of the pipelines."""
    shared = {item.name for item in fields(rlvr)} & {item.name for item in fields(agentic)}
    both = {name for name in shared if hints(rlvr)[name] == hints(agentic)[name]}
    of_rows = {item.name for item in fields(sft)} & {item.name for item in fields(dpo)} - both
    chapter = _Chapter()
    sections = [
        *chapter.sections(rlvr, "", lambda name: name in both),
        *chapter.sections(rlvr, "RLVR", lambda name: name not in both),
        *chapter.sections(agentic, "agentic", lambda name: name not in both),
        *chapter.sections(sft, "SFT and DPO", lambda name: name in of_rows),
        *chapter.sections(sft, "SFT", lambda name: name not in both | of_rows),
        *chapter.sections(dpo, "DPO", lambda name: name not in both | of_rows),
    ]
    read = ", ".join(f"`{name}`" for name in sorted(OF_EVERY_PIPELINE & both))
    rows = f"SFT and DPO read these of the keys of all pipelines, and refuse the others: {read}.\n"
    return "\n".join([INTRODUCTION, rows, *sections, *_back_ends()])


class _Chapter:
    """Tables of some of the top-level keys and the blocks below them; a block that was shown before is referred to."""

    def __init__(self) -> None:
        self._documented: dict[tuple[Any, str], str] = {}

    def sections(self, cls: Any, pipeline: str, wanted: Callable[[str], bool]) -> Iterator[str]:
        tables: dict[str, list[str]] = {}
        defaults: dict[str, Any] = {}
        repeated: list[str] = []
        for path, item, hint in walk(cls):
            if not wanted(path.split(".")[0]) or any(path.startswith(f"{block}.") for block in repeated):
                continue
            above, _, key = path.rpartition(".")
            default = defaults[path] = _default(item, defaults.get(above))
            kind, meaning = _type(hint), item.metadata["help"]
            block = next((member for member in (hint, *get_args(hint)) if is_dataclass(member)), None)
            if block is not None:
                name = f"{path}.<name>" if get_origin(hint) is dict else path
                shown = _titled(name, pipeline)
                known = self._documented.setdefault((block, repr(default)), shown)
                kind = ("list of " if get_origin(hint) is list else "") + f"[block](#{_anchor(known)})"
                if known != shown:
                    repeated.append(name)
                    meaning += f" As `{known}`."
            row = _row(key, kind, "" if is_dataclass(default) else _value(default), meaning, item)
            tables.setdefault(above, []).append(row)
        for name, rows in tables.items():
            title = f"`{name}`{f' ({pipeline})' if _differs(name, pipeline) else ''}" if name else "Top level"
            yield f"## {title}{f', {pipeline} only' if pipeline and not name else ''}\n\n" + HEADER + "".join(rows)


def _differs(name: str, pipeline: str) -> bool:
    """These have other keys in the two pipelines; other blocks belong to one of them, or are the same."""
    return bool(pipeline) and name.split(".")[0] in ("validation", "validation_sets")


def _titled(name: str, pipeline: str) -> str:
    return f"{name} ({pipeline})" if _differs(name, pipeline) else name


def _row(key: str, kind: str, default: str, meaning: str, item: Field[Any]) -> str:
    limits = str(item.metadata["bounds"])
    meaning += f" ({limits})" if limits else ""
    return f"| `{key}` | {kind} | {default} | {_cell(meaning)} |\n"


def _back_ends() -> Iterator[str]:
    names: dict[Any, list[str]] = {}
    for name, cls in STRATEGY_CONFIGS.items():
        names.setdefault(cls, []).append(f"`{name}`")
    for cls, users in names.items():
        rows = []
        for path, item, hint in walk(cls):
            default = default_of(item)
            shown = "" if is_dataclass(default) else _value(default)
            rows.append(_row(path, _type(hint), shown, item.metadata["help"], item))
        yield f"## `strategy_config` of {', '.join(users)}\n\n" + HEADER + "".join(rows)


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
        return " \\| ".join(_type(member) for member in members if get_origin(member) is not Callable)
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
    return "".join(c for c in path.lower() if c.isalnum() or c in "_- ").replace(" ", "-")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", "<br>")


if __name__ == "__main__":
    sys.stdout.write(page(RLVRConfig, AgenticConfig, SFTConfig, DPOConfig))
