"""The page on ROLL's YAML files: `python tools/roll_compatibility.py > docs_roll/roll_compatibility.md`.

Made from the table that loading applies (compat/roll/keys_*.py) and ROLL's keys (roll_surface.py); a test checks it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Literal

from roll_surface import SURFACE, keys

from roll.compat.code.names import NAMES
from roll.compat.roll.keys_tasks import NOT_HERE
from roll.compat.roll.keys_verl import VERL
from roll.compat.roll.pipelines import REFUSED
from roll.compat.roll.report import DEFAULTS, DIFFERENCES
from roll.compat.roll.rule import ROLES, KeyRule
from roll.compat.roll.translation import READINGS, RULES, has_field
from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.rlvr import RLVRConfig

Status = Literal["implemented", "read as another key", "without effect", "refused"]

INTRODUCTION = """\
# ROLL's YAML files

<!-- Made by `python tools/roll_compatibility.py > docs_roll/roll_compatibility.md`. -->

YAML files written for ROLL's RLVR and agentic pipelines load here, composed as ROLL composes them: Hydra's `defaults`
(`- ../config/traj_envs@_here_`), `${key}`, `${oc.env:NAME,default}`, whole blocks put in by name (`${custom_env.FrozenLake}`),
and, beyond ROLL, `key=value`, `+key=value` and `~key` on the command line. A
top-level key that only feeds `${...}` is a variable.

Every key of such a file is one of these:

| | strict, the default | with `--compat` |
|---|---|---|
| **implemented** | used | used |
| **read as another key** or value | used, and reported | used, and reported |
| **without effect** here, for the reason given | ignored, and reported | ignored, and reported |
| **refused**: lacking here | an error, with what to do | reported; the file loads and can be checked, but not started |
| unknown to both | an error, with the nearest name | reported, and ignored |

`roll check --compat` prints what became of each key, with file and line, which keys mean something else than in ROLL, and which
defaults are not ROLL's. `--compat` also takes null for a key that needs a value, as its default.
"""

ONE_NAME = """\
Keys of one name that mean something else to ROLL. `--compat` reads them as ROLL does, by other keys, and reports it; a value
that you write for such another key yourself stays. Without `--compat` a file has this project's meaning.
"""


CODE = """\
## Code that was written for ROLL

A reward worker of ROLL's form (`Worker`, `@register`, `compute_rewards(data: DataProto)`) and an environment that derives from
`gem.Env` run as they stand, named by their dotted paths in `worker_cls` and `env_type`. The file lies in a package of your own,
not below `roll`.

* A worker gets one response at a time, on the main thread of a process of its own (`max_concurrency` of them), within
  `timeout_s`. `data.batch` has `prompts`, `responses`, `input_ids`, `attention_mask`, `position_ids`, `prompt_mask` and
  `response_mask`, without padding; `data.non_tensor_batch` the columns of the prompt's row with `id`, `prompt`, `messages`,
  `ground_truth`, `tag`, `domain` and `rollout_id`. The tokenizer is the policy's. `worker_config` has the domain's block and its
  `reward_args` as attributes.
* `response_level_rewards` is the reward, in validation too, where ROLL takes `scores`. `scores`, other values by response and
  `meta_info["metrics"]` are parts of it, each with its metric. `token_level_rewards` is not read, as in ROLL.
* A worker with a model of its own is not there: `rewards.<domain>.judge` and `reward_model` have one.
* An environment's rules (`env_instruction` of `reset`) begin its first observation, and its `metrics` are read from `info`.

Other packages that such code imports (`gem-llm`, `codetiming`, `tensordict`) have to be installed. Of ROLL's own modules that are
not modules here there are these names; any other is an error that names it, at the import:
"""


def page() -> str:
    counts = Counter(status(key) for key in keys())
    lines = [f"| {name} | {counts[name]} |\n" for name in ("implemented", "read as another key", "without effect", "refused")]
    numbers = f"Of ROLL's {len(keys())} keys, counted by block:\n\n| | keys |\n|---|---|\n" + "".join(lines)
    parts = [_refused(), _environments(), _readings(), _differences(), _defaults(), _code(), "## Keys\n", *_blocks(), _verl()]
    return "\n".join([INTRODUCTION, numbers, *parts])


def status(key: str) -> Status:
    """What becomes of a key of ROLL; one that is read for some values counts as read, else one that is refused only where
    it is switched on as refused."""
    if _is_field(key):
        return "implemented"
    kinds = {rule.kind for rule in rules_of(key)}
    return "read as another key" if "alias" in kinds else "refused" if "lacking" in kinds else "without effect"


def rules_of(key: str) -> list[KeyRule]:
    """The rules about a key; else those about the block around it."""
    path = _path(key)
    for length in range(len(path), 0, -1):
        found = [rule for rule in RULES if rule.matches(path[:length]) and not (length < len(path) and rule.when is not None)]
        if found:
            return found
    return []


def _path(key: str) -> tuple[str, ...]:
    return tuple(key.split("."))


def _is_field(key: str) -> bool:
    """Whether either pipeline has it; `<role>` stands for any role."""
    paths = [_path(key.replace("<role>", role)) for role in ROLES] if "<role>" in key else [_path(key)]
    return any(has_field(cls, path) for cls in (RLVRConfig, AgenticConfig) for path in paths)


def _refused() -> str:
    rows = "".join(f"| {name} | {keys} |\n" for name, keys in REFUSED.items())
    return f"## Pipelines that are refused\n\nBy name, with `--compat` too.\n\n| pipeline | recognised by |\n|---|---|\n{rows}"


def _environments() -> str:
    rows = "".join(f"| `{name}` | {_cell(why)} |\n" for name, why in NOT_HERE.items())
    note = "With a class of your own around what they need, named by its dotted path, they are played."
    return f"## Environments that are refused\n\n{note}\n\n| `env_type` | |\n|---|---|\n{rows}"


def _readings() -> str:
    rows = "".join(f"| `{each.key}` | {_cell(each.values)} | {_cell(each.note)} |\n" for each in READINGS)
    return f"## Read with ROLL's meaning\n\n{ONE_NAME}\n| key | value | in ROLL |\n|---|---|---|\n{rows}"


def _differences() -> str:
    rows = "".join(f"| `{each.key}` | {_cell(each.when)} | {_cell(each.note)} |\n" for each in DIFFERENCES)
    note = "Deliberately: `--compat` tells each that a file is about, with the value in force."
    return f"## Means something else than in ROLL\n\n{note}\n\n| key | where | |\n|---|---|---|\n{rows}"


def _defaults() -> str:
    rows = "".join(f"| `{key}` | `{theirs}` | {why} |\n" for key, theirs, why in DEFAULTS)
    note = "Where a file leaves one out, `--compat` reports both values; ours are in [configuration](configuration.md)."
    return f"## Defaults that are not ROLL's\n\n{note}\n\n| key | ROLL | what it decides |\n|---|---|---|\n{rows}"


def _code() -> str:
    rows = "".join(
        f"| `{module}` | {', '.join('`' + name.partition('=')[0] + '`' for name in names.split())} |\n"
        for module, (_, names) in NAMES.items()
    )
    return f"{CODE}\n| module | names |\n|---|---|\n{rows}"


def _blocks() -> Iterator[str]:
    for block, names in SURFACE.items():
        every = [f"{block}.{name}" if block else name for name in names.split()]
        used = [key for key in every if _is_field(key)]
        rows = [row for key in every for row in _rows(key)]
        yield f"### {f'`{block}`' if block else 'Top level'}\n"
        if used:
            yield f"Implemented: {', '.join(f'`{_path(key)[-1]}`' for key in used)}.\n"
        if rows:
            yield "| key | value | becomes | |\n|---|---|---|---|\n" + "".join(rows)


def _verl() -> str:
    alone = Counter(rule.path for rule in VERL if "." not in rule.path)
    named = [(rule, rule.values or ("else" if alone[rule.path] > 1 else "any")) for rule in VERL if rule.path in alone]
    rows = "".join(row for rule, values in named for row in _row(rule, values))
    note = "Also by verl's own paths, `trainer.` and `actor_rollout_ref.`; `sync_interval` is Trinity-RFT's."
    return f"## Keys of verl's asynchronous pipeline\n\n{note}\n\n| key | value | becomes | |\n|---|---|---|---|\n{rows}"


def _rows(key: str) -> Iterator[str]:
    of_values = [rule for rule in RULES if rule.matches(_path(key)) and not rule.for_absent]
    for number, rule in enumerate(of_values if _is_field(key) else rules_of(key)):
        yield from _row(rule, rule.values or ("else" if number else "any"))


def _row(rule: KeyRule, values: str) -> Iterator[str]:
    becomes = {"alias": "read as another", "without effect": "without effect", "lacking": "refused"}[rule.kind]
    yield f"| `{_path(rule.path)[-1]}` | {_cell(values)} | {becomes} | {_cell(rule.note)} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "&#124;").replace("<", "&lt;")


if __name__ == "__main__":
    sys.stdout.write(page())
