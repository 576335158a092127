"""`roll replay RUN`: the recorded steps of a run are trained again, and must lead to the same weights; or, with `--change` and
`--without-*`, the same rollouts are given to another trainer."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll.cli.options import Parser, answering, table
from roll.core.configs.problems import MISSING_VALUE, ConfigError, Problem
from roll.core.configs.redact import visible

if TYPE_CHECKING:
    from roll.core.flow.custom_stage import CustomStage
    from roll.plan.load_report import LoadReport
    from roll.prepare.replayed import Config

RECORDED = (
    "actor_infer", "rewards", "custom_envs", "train_env_manager", "validation", "async_", "staleness_policy", "max_reuse",
    "rollout", "num_return_sequences_in_group", "redundant_groups", "mode", "replay", "max_steps", "exp_name", "output_dir",
)  # fmt: skip
"""Beginnings of keys that say how rollouts come about, or where a run lies: to change them would change nothing."""
FILTERS = re.compile(r"rewards\.[^.]+\.query_filter_config(\..+)?|train_env_manager\.group_filter_cls")
"""Keys of the rollouts by which recorded groups can be judged again."""
FEW = 0.5
"""Effective sample size, as a share of the responses, below which they say little about another trainer."""
NOT_COMPARED = "an older cache was kept (weight_update_mode: in_flight), or several samples of a conversation have them"
SHOWN = {"loss": "actor/total_loss", "gradient": "actor_train/grad_norm"}
LARGEST_TABLE = 24


@answering
def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 if all weights are equal, or a change ran to its end; 1 if not; 2 for bad input."""
    options = _parser().parse_args(arguments)
    from roll.cli.train import prepare_process

    prepare_process()
    from roll.prepare.replayed import last_of

    run_dir = options.run.resolve()
    last = last_of(run_dir) if options.until is None else options.until
    if options.first is not None and options.first > last:
        raise ConfigError([Problem("--from", options.first, f"the last step is {last}", f"--from {last}")])
    changed = bool(options.change or options.without)
    if changed and options.generate:
        message = "compares tokens with those of the recorded weights, which a change has not"
        raise ConfigError([Problem("--all", MISSING_VALUE, message, "leave --all out, or --change and --without")])
    into = options.into or _free(run_dir.with_name(f"{run_dir.name}.{'changed' if changed else 'replay'}"))
    if into.exists():
        raise ConfigError([Problem("--into", str(into), "is there already", "a folder that is not there yet")])
    code = _replayed(options, run_dir, into.absolute(), last, changed)
    print("\n".join(map(visible, _told(run_dir, into, changed))))
    return code or int(not changed and not _is_equal(into))


def _parser() -> Parser:
    description = (
        "Trains the recorded steps of a run again (rollout_log_per_step: all). The weights must be the same, bit for bit."
    )
    parser = Parser(prog="roll replay", description=description, allow_abbrev=False)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run: <output_dir>/<exp_name>")
    parser.add_argument("--train", action="store_true", help="the trainer alone, on the recorded groups; the default")
    help_ = "generate the tokens again, too, each by the weights of its version, and compare (hf_infer)"
    parser.add_argument("--all", dest="generate", action="store_true", help=help_)
    help_ = "the first step that counts; begins at the nearest checkpoint before it"
    parser.add_argument("--from", dest="first", type=int, metavar="STEP", help=help_)
    parser.add_argument("--until", type=int, metavar="STEP", help="the last step (default: the last one recorded)")
    parser.add_argument(
        "--break", dest="stop", type=int, metavar="STEP", help="a debugger before this step is trained; implies --local"
    )
    help_ = "another trainer for the same rollouts, from --from on; any key of the training side, or of a filter of groups"
    parser.add_argument("--change", action="append", default=[], metavar="KEY=VALUE", help=help_)
    for name, shape in (("group", "ID"), ("sample", "GROUP/INDEX")):
        parser.add_argument(f"--without-{name}", dest="without", action="append", default=[], metavar=shape, help="leave it out")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="of the replay (default: beside the run)")
    parser.add_argument("--local", action="store_true", help="one process, no Ray")
    return parser


def _free(folder: Path) -> Path:
    number, found = 1, folder
    while found.exists():
        number += 1
        found = folder.with_name(f"{folder.name}-{number}")
    return found


def _replayed(options: argparse.Namespace, run_dir: Path, into: Path, last: int, changed: bool) -> int:
    """Returns the exit code of the run. Steps between the checkpoint and the first one to be changed are trained as they were."""
    from roll.cli.train import run
    from roll.prepare.replayed import beginning_of, generating, replayed

    config, report = loaded(run_dir, [])
    begin, done = beginning_of(run_dir, config, options.first)
    first = done + 1 if options.first is None else options.first
    if changed and done < first - 1:
        before = into.with_name(f"{into.name}.before")
        if code := run(replayed(config, run_dir, before, begin, first - 1), report, options.local):
            return code
        begin = before / "checkpoints" / f"step-{first - 1}"
    if changed:
        config, report = loaded(run_dir, options.change)
    stages = [] if options.stop is None else [_debugger(options.stop)]
    local = options.local or options.stop is not None
    filtered = any(FILTERS.fullmatch(_key(change)) for change in options.change)
    own = replayed(config, run_dir, into, begin, last, options.without, filtered)
    return run(generating(own) if options.generate else own, report, local, stages)


def loaded(run_dir: Path, changes: Sequence[str]) -> tuple[Config, LoadReport]:
    """The run's configuration, changed. Raises `ConfigError`."""
    from roll.core.configs.agentic import AgenticConfig
    from roll.core.configs.rlvr import RLVRConfig
    from roll.core.record.run_identity import started_in
    from roll.prepare.compose import load_to_start

    for change in changes:
        key = _key(change)
        if "=" not in change:
            raise ConfigError([Problem("--change", change, "must be key=value")])
        if key.startswith(RECORDED) and not FILTERS.fullmatch(key):
            message = "is of the rollouts, which are recorded, or says where a run lies: nothing would change"
            fix = "a key of the training side, e.g. actor_train.pg_variant=gspo, or of a filter of groups"
            raise ConfigError([Problem("--change", key, message, fix)])
    if not (run_dir / "config.yaml").is_file():
        raise ConfigError([Problem("RUN", str(run_dir), "is no folder of a run", "<output_dir>/<exp_name>")])
    if (started := started_in(run_dir)) not in (None, Path.cwd()):
        what = f"relative paths of {run_dir}/config.yaml were meant from {started}, where the run was started, not from here"
        print(f"note: {visible(what)}", file=sys.stderr)
    config, report = load_to_start(run_dir, "config", list(changes))
    if not isinstance(config, RLVRConfig | AgenticConfig):
        message = f"is a {config.kind} run on rows: its seed decides every step"
        raise ConfigError([Problem("RUN", str(run_dir), message, "start it again, in another output_dir")])
    return config, report


def _key(change: str) -> str:
    return change.partition("=")[0].lstrip("+~")


def _debugger(step: int) -> CustomStage:
    """A stage in which Python's debugger has the step's groups and tensors."""
    from roll.core.trainer.trainer import Step
    from roll.prepare.own_stages import make_stage

    async def debugger(item: Step) -> Step:
        if item.number + 1 == step:
            breakpoint()
        return item

    return make_stage("debugger", debugger, after="advantage")


def _told(run_dir: Path, into: Path, changed: bool) -> Iterator[str]:
    from roll.topologies.replay.replayed_trainer import COMPARED

    yield ""
    if changed:
        yield from _side_by_side(run_dir, into)
        yield f"more: roll diff {run_dir} {into}, and roll ui {run_dir.parent}"
        return
    if not (into / COMPARED).is_file():
        yield "no step was trained to its end"
        return
    found = json.loads((into / COMPARED).read_text())
    versions = len(found["equal"]) + len(found["different"])
    yield f"weights: equal after {len(found['equal'])} of {versions} steps"
    if found["unknown"]:
        yield f"no digest was recorded after step {', '.join(map(str, found['unknown']))}"
    if found["different"]:
        yield f"they differ from step {found['different'][0]} on; largest relative difference of {_largest(run_dir, into)}"
        yield "bit for bit needs the same machine, back end and libraries, and deterministic: training in the recorded run"
    yield from _checkpoints(run_dir, into)
    yield from _generated(into)


def _is_equal(into: Path) -> bool:
    from roll.topologies.replay.regenerated import REGENERATED
    from roll.topologies.replay.replayed_trainer import COMPARED

    found = json.loads((into / COMPARED).read_text()) if (into / COMPARED).is_file() else {"equal": [], "different": []}
    generated = json.loads((into / REGENERATED).read_text()) if (into / REGENERATED).is_file() else {"first": None}
    return bool(found["equal"]) and not found["different"] and generated["first"] is None


def _checkpoints(run_dir: Path, into: Path) -> Iterator[str]:
    """The checkpoints that both have: by SHA-256, the files of trainer and critic."""
    from roll.core.record.checkpoint import CRITIC, TRAINER, CheckpointStore
    from roll.core.record.manifest import read_manifest

    stores = [CheckpointStore(folder / "checkpoints") for folder in (run_dir, into)]
    for step in sorted(set(stores[0].steps()) & set(stores[1].steps())):
        one, other = (read_manifest(store.root / f"step-{step}").files for store in stores)
        names = [name for name in one if name.startswith((f"{TRAINER}/", f"{CRITIC}/"))]
        unlike = [name for name in names if one[name] != other.get(name)]
        yield f"checkpoint step-{step}: {f'{unlike[0]} differs' if unlike else f'{len(names)} files are equal (SHA-256)'}"


def _generated(into: Path) -> Iterator[str]:
    from roll.topologies.replay.regenerated import REGENERATED

    if not (into / REGENERATED).is_file():
        return
    found = json.loads((into / REGENERATED).read_text())
    yield f"tokens: {found['equal']:,} of {found['tokens']:,} are equal; log-probs of these to {found['largest_gap']:.1e} nats"
    if found["not_compared"]:
        yield f"{found['not_compared']:,} tokens are not compared: {NOT_COMPARED}"
    if (first := found["first"]) is not None:
        where = f"group {first['group']}, sample {first['sample']}, token {first['token']} (step {first['step']})"
        yield f"the first difference: {where}, version {first['version']}, engine {first['engine']}"


def _steps(run_dir: Path) -> dict[int, dict[str, Any]]:
    from roll.core.record.journal import read_rows

    rows = read_rows(run_dir / "metrics.jsonl")
    return {row["step"]: row for row in rows if "actor_train/optimiser_steps" in row}


def _largest(run_dir: Path, into: Path) -> str:
    """The largest relative difference of a metric of the training side."""
    before, now = _steps(run_dir), _steps(into)
    found = [
        (abs(row[name] - before[step][name]) / max(abs(before[step][name]), 1e-12), name, step)
        for step, row in now.items()
        for name in SHOWN.values()
        if step in before and isinstance(row.get(name), float) and isinstance(before[step].get(name), float)
    ]
    share, name, step = max(found, default=(0.0, MISSING_VALUE, 0))
    return f"{name}: {share:.1e} at step {step}"


def _side_by_side(run_dir: Path, into: Path) -> Iterator[str]:
    """The curves of both, until the responses say little about the other trainer."""
    from roll.core.algorithms.correction import ESS

    before, now = _steps(run_dir), _steps(into)
    steps = sorted(before.keys() & now.keys())
    head = ["step", *(f"{label} {then}" for label in SHOWN for then in ("was", "is")), "ESS"]
    rows = [[str(step), *_figures(before[step], now[step])] for step in steps[:LARGEST_TABLE]]
    yield from table([head, *rows])
    few = next((step for step in steps if now[step].get(ESS, 1.0) < FEW), None)
    if few is not None:
        yield f"from step {few} on fewer than {FEW:.0%} of the responses count (ESS): they say little about this trainer"


def _figures(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    from roll.core.algorithms.correction import ESS

    for name in SHOWN.values():
        yield from (f"{row.get(name, math.nan):.4g}" for row in (before, now))
    yield f"{now.get(ESS, math.nan):.2f}"
