"""`roll explain RUN --step N`: the step is trained again and its gradient taken apart: which samples, groups and tokens moved it,
and where a value that is not finite came from."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from roll.cli.options import Parser, answering, table
from roll.core.configs.problems import ConfigError, Problem
from roll.core.configs.redact import visible
from roll.core.record.journal import plain

MOST = 10
"""Rows of a table."""


@answering
def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0, 1 if the replay failed before it came to the step, 2 for bad input."""
    description = "What moved a step of a recorded run (rollout_log_per_step: all): its gradient by sample, group and token."
    parser = Parser(prog="roll explain", description=description, allow_abbrev=False)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run: <output_dir>/<exp_name>")
    parser.add_argument("--step", type=int, required=True, metavar="N", help="the step, counted from 1")
    help_ = "explain another trainer's step; any key of the training side"
    parser.add_argument("--change", action="append", default=[], metavar="KEY=VALUE", help=help_)
    parser.add_argument("--local", action="store_true", help="one process, no Ray")
    parser.add_argument("--json", action="store_true", help="all as data; else to standard error")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="roll-explain-") as folder:
        into = Path(folder) / "explained"
        with contextlib.redirect_stdout(sys.stderr):
            code = _replayed(options.run.resolve(), options.step, into, options.change, options.local)
        found = _found(into)
    if found is None:
        return code or 1
    print(json.dumps(plain(found), indent=1) if options.json else "\n".join(map(visible, told(found))))
    return 0


def _replayed(run_dir: Path, step: int, into: Path, changes: Sequence[str], local: bool) -> int:
    """Raises `ConfigError`."""
    from roll.cli.replay import loaded
    from roll.cli.train import prepare_process, run

    prepare_process()
    from roll.prepare.replayed import beginning_of, explaining, last_of, replayed

    if not 1 <= step <= (last := last_of(run_dir)):
        raise ConfigError([Problem("--step", step, f"the steps are 1 to {last}", f"--step {last}")])
    config, report = loaded(run_dir, changes)
    begin, _ = beginning_of(run_dir, config, step)
    return run(explaining(replayed(config, run_dir, into, begin, step), step), report, local)


def _found(into: Path) -> dict[str, Any] | None:
    from roll.topologies.replay.explained import EXPLAINED
    from roll.topologies.replay.replayed_trainer import COMPARED

    if not (into / EXPLAINED).is_file():
        return None
    found: dict[str, Any] = json.loads((into / EXPLAINED).read_text())
    compared = json.loads((into / COMPARED).read_text()) if (into / COMPARED).is_file() else {"different": []}
    return found | {"differs_from": min(compared["different"], default=None)}


def told(found: Mapping[str, Any]) -> Iterator[str]:
    samples, groups = found["samples"], dict[int, list[Mapping[str, Any]]]()
    for sample in samples:
        groups.setdefault(sample["group"], []).append(sample)
    yield f"step {found['step']}: gradient norm {found['grad_norm']:.4g}, before clipping"
    if found["cause"] is not None:
        yield f"not finite: {said(found['cause'])}"
    if found["differs_from"] is not None:
        yield (
            f"the weights differ from the recorded ones from version {found['differs_from']} on: something else than the "
            "recorded groups changed them (memory, another back end or number of ranks, a step that is not repeatable)"
        )
    yield from ("", "groups, by their share of the gradient")
    rows = [[str(group), *_row(of_group)] for group, of_group in groups.items()]
    yield from table([["group", "share", "norm", "reward"], *_first(rows)])
    yield from ("", "samples")
    rows = [[f"{each['group']}/{each['index']}", *_row([each]), each["response"][:40]] for each in samples]
    yield from table([["sample", "share", "norm", "reward", "response"], *_first(rows)])
    yield from ("", "tokens, by the derivative of the loss by their log-prob")
    tokens = [(f"{each['group']}/{each['index']}", token) for each in samples for token in each["tokens"][:MOST]]
    tokens.sort(key=lambda each: -_size(each[1]["push"]))
    names = ("place", "id", "push", "advantage", "ratio", "logprob", "behaviour_logprob")
    head = ["sample", "place", "id", "derivative", "advantage", "ratio", "log-prob", "sampler's"]
    yield from table([head, *([who, *(f"{token[name]:.4g}" for name in names)] for who, token in tokens[:MOST])])


def said(cause: Mapping[str, Any]) -> str:
    """A cause in words."""
    of = f" of sample {cause['group']}/{cause['index']} (prompt {cause['prompt']})" if "group" in cause else ""
    if cause["what"] == "weight":
        return f"the weight {cause['name']}{cause['place']} is {cause['value']}"
    if cause["what"] in ("module", "gradient"):
        largest = cause["largest_weight"]
        weight = f"; its largest weight is {largest['name']}{largest['place']} = {largest['value']:.3g}" if largest else ""
        where = f"{cause['tensor']} of {cause['module'] or 'the model'} at {cause['place']}"
        return f"the {where} is the first{of}{weight}"
    token = f", token {cause['token']} of the response," if "token" in cause else ""
    return f"the {cause['what']}{of}{token} is {cause['value']}"


def _row(samples: Sequence[Mapping[str, Any]]) -> list[str]:
    """Share, norm and reward. The norm of several is the largest."""
    rewards = [each["reward"] for each in samples if each["reward"] is not None]
    share, norm = sum(each["share"] for each in samples), max((each["grad_norm"] for each in samples), key=_size)
    return [f"{share:.1%}", f"{norm:.4g}", f"{sum(rewards) / len(rewards):.4g}" if rewards else ""]


def _first(rows: Sequence[list[str]]) -> list[list[str]]:
    return sorted(rows, key=lambda row: -_size(float(row[2])))[:MOST]


def _size(value: float) -> float:
    """Not finite is the largest."""
    return abs(value) if math.isfinite(value) else math.inf
