"""The page on verl's settings: `python tools/verl_compatibility.py > docs_roll/verl_compatibility.md`.

Made from the tables that loading applies (compat/verl/keys_*.py); a test checks it.
"""

from __future__ import annotations

import sys

from compatibility_page import blocks, cell

from roll.compat.verl.defaults import TABLES
from roll.compat.verl.keys_training import CONDITIONS
from roll.compat.verl.sources import ANSWERED, BOXED, GSM8K
from roll.compat.verl.translation import RULES


def names(listed: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in listed)


STREAM = (
    "steps of ppo_mini_batch_size x require_batches prompts, weights every trigger_parameter_sync_step steps, the engines on the "
    "last devices"
)
INTRODUCTION = f"""\
# verl's settings

<!-- Made by `python tools/verl_compatibility.py > docs_roll/verl_compatibility.md`. -->

A start script of verl's, or a YAML file with its blocks, is read as it stands:

```bash
roll check --config_path ... --config_name run_grpo.sh
roll train rlvr --config_path ... --config_name run_grpo.sh
```

Every key is one of these: **read** as keys of this project, **without effect** here for the reason given, or **refused** with
what to do. A key that is in no table is refused, never taken for another. `roll check --compat` reports on a whole file;
strictly, what is refused is an error. Keys of this project may stand in the file or on the command line, as verl's may, and
count where both say something. Keys, and defaults, are those of verl 0.7 to 0.10.

## Scripts

A script has one command that starts `verl.trainer.main_ppo`, `fully_async_policy` or `one_step_off_policy`. **Nothing of it is
run.** Its words are read as a shell reads them: quotes, continued lines, variables, `${{NAME:-default}}`, arrays, functions,
whole numbers in `$((...))`, `if` and `case`; of commands in `$(...)` date, pwd, `cd ... && pwd`, basename, dirname and echo (a
run whose name has the date is another at each start). Variables of the environment count: `MODEL_PATH=... roll check ...`.
What depends on any other command's outcome is unknown. An unknown word is an error only if the command needs it; the error names
the word, its line and what to give a value.

The file that the command names (`--config-name`) is verl's own, or a YAML file that lies where it says. A YAML file of verl's
may name the keys that are changed, or be the whole that verl prints; of its defaults list the files beside it are read.

## Modes

| started | becomes |
|---|---|
| `main_ppo` | async_generation_ratio 0: all roles share all devices, and take turns |
| `one_step_off_policy`, or the block `rollout` | async_generation_ratio 1; the engines have the last devices |
| `fully_async_policy`, or the block `async_training` | a stream: {STREAM} |

## Rewards

A function of your own (`custom_reward_function.path`, `.name`) is called as it stands. Without one the scorer that verl has for a
row's `data_source` judges it: {names(GSM8K)} by the number behind `####`, as there; the others by
[MathRuleRewardWorker](rewards.md), 1 for a right result, in a box or not, else 0: {names(BOXED)}, where verl asks for a box, and
{names(ANSWERED)}, where verl looks for an answer in one place, and has -1 for a wrong one. A row of another `data_source` is
refused before a worker starts.

## Keys

Keys of `critic` are without effect without gae, of `actor_rollout_ref.ref` without a KL term, and of a back end (`megatron`,
`fsdp_config`) if another is chosen. Those of the critic's optimiser, and of the critic's and the reference's back
end, are read as the actor's.
"""
AS_THE_ACTORS = (
    *(f"critic.{name}." for name in ("optim", "fsdp", "fsdp_config", "megatron", "model.fsdp_config")),
    *(f"actor_rollout_ref.ref.{name}." for name in ("fsdp", "fsdp_config", "megatron", "model.fsdp_config")),
    *(f"actor_rollout_ref.actor.{name}." for name in ("fsdp", "model.fsdp_config")),
)
"""Blocks whose keys are read as the actor's of that name."""


def page() -> str:
    listed = [rule for rule in RULES if rule.note not in CONDITIONS and not rule.path.startswith(AS_THE_ACTORS)]
    return "\n".join([INTRODUCTION, *blocks(listed, depth=2), _defaults()])


def _defaults() -> str:
    entries = [(path, value, when) for when, table in TABLES.items() for path, value in table.items()]
    rows = "".join(f"| `{path}` | `{cell(str(value))}` | {when} |\n" for path, value, when in entries)
    head = "| key | default | in files with |\n|---|---|---|\n"
    return f"## Defaults\n\nverl's own count where a file leaves these out:\n\n{head}{rows}"


if __name__ == "__main__":
    sys.stdout.write(page())
