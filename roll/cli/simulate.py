"""`roll simulate`: a configuration in virtual time: the production code with scripted workers (roll/simulate)."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from roll.cli.options import OVERRIDES, Parser, answering, config_folder, that_generates
from roll.core.configs.problems import MISSING_VALUE, ConfigError, Problem

if TYPE_CHECKING:
    from roll.simulate.costs import Costs
    from roll.simulate.run import Config

SPLIT = ("engines", "trainers", "explorers")
"""Names in a sweep that stand for the options."""
DEFAULT_NAME = "rlvr_config_async"


@dataclass(frozen=True, slots=True)
class Prediction:
    values: dict[str, str]
    """Values of the swept keys."""
    status: str
    reason: str
    steady: dict[str, Any]
    """`Figures` of the later half of the steps."""
    steps: list[dict[str, Any]]
    """The metrics of time, by step."""
    summary: dict[str, Any]
    virtual_s: float
    real_s: float
    """Seconds that the simulation took."""


@answering
def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 if every simulated run came to its end, 1 if one did not."""
    options, overrides = _parser().parse_with_overrides(arguments)
    from roll.cli.sweep import combinations

    swept = combinations([*options.sweep, *overrides]) if options.sweep else []
    cases = [(dict(one.values), list(one.overrides)) for one in swept] or [({}, list(overrides))]
    costs, predictions = None, []
    for values, given in cases:
        config, explorers = _config(options, given)
        costs = costs or _costs(options)
        name = ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items()) or "simulated"
        predictions.append(_predicted(config, explorers, costs, values, name, options.keep))
    assert costs is not None
    if options.json:
        shown = {"costs": asdict(costs), "predictions": [asdict(each) for each in predictions]}
        print(json.dumps(shown, indent=2))
    else:
        print("\n".join([*_told(predictions, costs), *_unsaid(config, costs)]))
    return 0 if all(each.status == "finished" for each in predictions) else 1


def _parser() -> Parser:
    parser = Parser(
        prog="roll simulate",
        description="What a configuration would do: step time, idle devices, staleness, buffers. The code of a real run, in "
        "virtual time, with workers that take as long as a table or an earlier run says.",
        epilog=OVERRIDES + " With --sweep they come before it.",
        allow_abbrev=False,
    )
    parser.add_config_options(DEFAULT_NAME)
    parser.set_defaults(config_name=None)
    parser.add_argument(
        "--trace", type=Path, metavar="RUN", help="take costs, and unless another is named the configuration, of a run"
    )
    parser.add_argument("--costs", type=Path, metavar="FILE", help="a YAML table of costs, over those of --trace")
    parser.add_argument("--engines", type=int, metavar="N", help="so many inference engines, on devices of their own")
    parser.add_argument("--trainers", type=int, metavar="M", help="so many training ranks")
    help_ = "so many explorers, processes of their own, each with all of the engines, beside a trainer that is another"
    parser.add_argument("--explorers", type=int, metavar="E", help=help_)
    help_ = "KEY=A,B ...: a simulation of each combination; engines=4,6, trainers=4,2 and explorers=1,2 are swept, too"
    parser.add_argument("--sweep", nargs="+", default=[], metavar="KEY=A,B", help=help_)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the folders of the simulated runs here, for roll ui")
    parser.add_argument("--json", action="store_true", help="all figures as data")
    return parser


def _config(options: argparse.Namespace, given: Sequence[str]) -> tuple[Config, int | None]:
    """And how many explorers are processes of their own. Raises `ConfigError`."""
    from roll.prepare.compose import load
    from roll.simulate.split import with_devices

    counts = {name: getattr(options, name) for name in SPLIT}
    overrides = []
    for override in given:
        key, _, value = override.partition("=")
        if key in SPLIT:
            counts[key] = _count(key, value)
        else:
            overrides.append(override)
    if options.trace is not None and options.config_name is None:
        config, _ = load(options.trace, "config", overrides)
    else:
        config, _ = load(config_folder(options.config_path), options.config_name or DEFAULT_NAME, overrides)
    config = that_generates(config, options.config_name or DEFAULT_NAME)
    return with_devices(config, counts["engines"], counts["trainers"]), counts["explorers"]


def _count(key: str, value: str) -> int:
    if not value.isdecimal():
        raise ConfigError([Problem(key, value, "is no number of devices", f"{key}=4")])
    return int(value)


def _costs(options: argparse.Namespace) -> Costs:
    """Raises `ConfigError`."""
    from roll.simulate.calibration import calibrated
    from roll.simulate.costs import Costs, read_costs

    costs = Costs()
    if options.trace is not None:
        from roll.prepare.compose import load

        config, _ = load(options.trace, "config", [])
        costs = calibrated(options.trace, config)
    if options.costs is not None:
        try:
            text = options.costs.read_text()
        except OSError as error:
            raise ConfigError(
                [Problem("--costs", str(options.costs), f"cannot be read: {error.strerror}", "a YAML file")]
            ) from error
        costs = read_costs(text, str(options.costs), costs)
    if options.trace is None and options.costs is None:
        fix = "--trace RUN, a run of some steps, or --costs FILE, a table such as {response_tokens: 800}"
        raise ConfigError([Problem("command line", MISSING_VALUE, "nothing says how long anything takes", fix)])
    return costs


def _predicted(
    config: Config, explorers: int | None, costs: Costs, values: dict[str, str], name: str, keep: Path | None
) -> Prediction:
    """Raises `ConfigError`."""
    from roll.core.errors import Stuck
    from roll.platform.garbage import searching_young_objects, spare_what_is_there
    from roll.simulate.apart import simulate_apart
    from roll.simulate.figures import steady, step_rows
    from roll.simulate.run import Simulation, simulate, simulated

    spare_what_is_there()
    with _folder(keep) as folder, searching_young_objects():  # searching all takes a third of a simulation's time
        simulation = Simulation(simulated(replace(config, exp_name=name), folder), costs)
        began = time.monotonic()
        try:
            summary = simulate(simulation) if explorers is None else simulate_apart(simulation, explorers)
        except Stuck as error:
            summary = {"status": "failed", "reason": str(error), "wall_s": 0.0}
        real_s, run_dir = time.monotonic() - began, Path(simulation.config.run_dir)
        rows = step_rows(run_dir) if (run_dir / "metrics.jsonl").exists() else []
    found = steady(rows, config.rollouts_per_step, simulation.group_tokens).plain() if len(rows) > 2 else {}
    if explorers and found:  # their engines are none of the trainer's, whose steps these are
        found["idle"] = summary["idle_share"] | found["idle"]
    kept = [
        {key: row[key] for key in row if key.startswith(("step", "time/", "staleness/", "scheduler/", "idle_share/"))}
        for row in rows
    ]
    return Prediction(values, summary["status"], summary["reason"], found, kept, summary, summary["wall_s"], real_s)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="roll-simulate-") as folder:
        yield Path(folder)


def _told(predictions: Sequence[Prediction], costs: Costs) -> Iterator[str]:
    from roll.cli.options import table

    names = list(predictions[0].values)
    roles = sorted(
        {role for each in predictions for role in each.steady.get("idle", {}) if role in ("actor_train", "actor_infer")}
    )
    head = [
        *names,
        "step",
        "samples/s",
        *(f"{role} idle" for role in roles),
        "lag mean",
        "max",
        "trainer waits",
        "buffered",
        "MB",
    ]
    rows = [head]
    for each in predictions:
        own = [each.values[name] for name in names]
        rows.append([*own, *(_cells(each.steady, roles) if each.steady else [each.status])])
    width = max(map(len, rows))
    yield from table([row + [""] * (width - len(row)) for row in rows])
    for each in predictions:
        if each.status != "finished":
            yield f"{each.values or 'the run'}: {each.status}: {each.reason}"
    if len(predictions) > 1:
        yield _frontier(predictions)
    seconds, real_s = fmean(each.virtual_s for each in predictions), fmean(each.real_s for each in predictions)
    yield f"{seconds:,.0f} virtual seconds in {real_s:.1f} s each; figures are those of the later half of the steps"
    if costs.measured:
        yield "costs of the run: " + "; ".join(f"{name}: {where}" for name, where in costs.measured.items() if where != "default")


def _unsaid(config: Config, costs: Costs) -> Iterator[str]:
    """Yields the missing costs that matter, given by neither a run nor a table."""
    from roll.simulate.calibration import overlaps

    devices = [device for worker in config.roles().values() for device in worker.devices]
    if overlaps(config):
        fits = "; no memory is planned: roll check says whether both fit" if config.sharing == "auto" else ""
        yield f"overlap_speed is {costs.overlap_speed:g}: of its speed each of two roles has that compute on one device{fits}"
    elif costs.turn_s == 0 and len({*devices}) < len(devices):
        yield "turn_s is 0: roles that share devices sleep and wake in the time of a call; a trace of such a run says how long"


def _cells(found: Mapping[str, Any], roles: Sequence[str]) -> list[str]:
    idle = [f"{found['idle'][role]:.0%}" if role in found["idle"] else "" for role in roles]
    lag = [f"{found['staleness']:.2f}", f"{found['staleness_max']:g}"]
    rest = [f"{found['waiting']:.0%}", f"{found['buffered']:.1f}", f"{found['buffer_mb']:.1f}"]
    return [f"{found['step_s']:.3g} s", f"{found['samples_per_s']:.3g}", *idle, *lag, *rest]


def _frontier(predictions: Sequence[Prediction]) -> str:
    """Returns the predictions that no other beats in both step time and staleness."""
    from roll.simulate.figures import frontier

    done = [each for each in predictions if each.steady]
    best = [done[place] for place in frontier([(each.steady["step_s"], each.steady["staleness"]) for each in done])]
    shown = (f"{', '.join(f'{key}={value}' for key, value in each.values.items())}: {each.steady['step_s']:.3g} s at lag "
             f"{each.steady['staleness']:.2f}" for each in best)  # fmt: skip
    return f"the frontier of time against staleness: {'; '.join(shown)}"
