"""`roll show RUN`: the state of a run, from its files: steps, versions, processes, groups by state. `roll diff A B`:
differences of two configurations, their results and times, and their metrics.

Of a run whose groups lie in a database this knows every process; of one with its groups in memory, the driver's last report."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from roll.cli.options import table
from roll.core.configs.redact import redact_text, visible
from roll.core.configs.sizes import duration
from roll.core.configs.staleness import staleness_bound
from roll.core.record.estimates import Validated
from roll.core.record.journal import read_rows
from roll.core.record.run_identity import RunIdentity, groups_address, read_identity
from roll.reports.alarms import ALARMS
from roll.reports.learning_curve import REWARD
from roll.reports.printed_summary import evaluation_lines, tag_lines
from roll.reports.verdict import CUT, STEP_S, STOPPED, WAIT_S
from roll.view.journal import number
from roll.view.metrics import panels
from roll.view.run import RunReader
from roll.view.runs import check_run, compared, is_run, metric_differences


def diff(arguments: Sequence[str]) -> int:
    """Returns 0, or 2 if one of them is no run."""
    parser = argparse.ArgumentParser(prog="roll diff", description="Two runs: configurations, results, metrics.")
    parser.add_argument("runs", type=Path, nargs=2, metavar="RUN", help="the folder of a run: <output_dir>/<exp_name>")
    parser.add_argument("--step", type=int, metavar="N", help="metrics at this step, or the last one before; without: at the end")
    parser.add_argument("--all", action="store_true", help="all metrics, not the main ones alone")
    parser.add_argument("--json", action="store_true", help="the same as data, all metrics")
    options = parser.parse_args(arguments)
    for folder in options.runs:
        if not is_run(folder):
            print(f"error: {visible(str(folder))} is no run: a run has config.yaml and metrics.jsonl", file=sys.stderr)
            return 2
    first, second = map(RunReader, options.runs)
    if options.json:
        found = compared({"first": first, "second": second})
        metrics = {name: values for name, *values in metric_differences(first.metrics, second.metrics, options.step)}
        print(json.dumps({"runs": found["runs"], "differences": found["differences"], "metrics": metrics}, indent=2))
    else:
        print("\n".join(map(visible, _lines(first, second, options.step, options.all))))
    return 0


def _lines(first: RunReader, second: RunReader, step: int | None, everything: bool) -> Iterator[str]:
    found = compared({"first": first, "second": second})
    yield from table([["", str(first.folder), str(second.folder)], *_reached(found["runs"])])
    yield from ("", "configuration" if found["differences"] else "configuration: no difference")
    yield from table(found["differences"])
    names = set(found["names"])
    main = {line["name"] for panel in panels(names) for line in panel["lines"]}
    rows = [
        [name, *("–" if value is None else f"{value:.5g}" for value in (one, other)), _change(one, other)]
        for name, one, other in metric_differences(first.metrics, second.metrics, step)
        if (everything or name in main) and one != other
    ]
    yield from ("", f"metrics {'at the end' if step is None else f'at step {step}'}")
    yield from table(rows)


def _reached(runs: Sequence[dict[str, object]]) -> Iterator[list[str]]:
    labels = {"steps": "steps", "first": "validation, first", "best": "best", "last": "last", "reward": "reward"}
    for key, label in labels.items():
        yield [label, *("–" if (value := number(run[key])) is None else f"{value:.4g}" for run in runs)]
    yield ["time", *(duration(number(run["seconds"]) or 0.0) for run in runs)]
    yield ["best after", *("–" if (value := number(run["best_s"])) is None else duration(value) for run in runs)]
    gained = (number(run["gained_per_s"]) for run in runs)
    yield ["gained per minute", *("–" if value is None else f"{60 * value:+.4f}" for value in gained)]


def _change(one: float | None, other: float | None) -> str:
    return f"{(other - one) / abs(one):+.1%}" if one and other is not None else ""


LOOK_S = 2.5
"""A process whose beat does not change in this time is said to be silent (`roll.topologies.sql.news.BEAT_S` is less)."""
STATES = {"alive": "is alive", "silent": "is silent", "left": "has left", "lost": "was lost"}
RECENT_S = 60.0
"""Rates are those of the last so many seconds."""
NO_WORK = {"groups": 0, "recent": 0, "tokens": 0, "lag": None}


def main(arguments: Sequence[str]) -> int:
    """Returns 0, or 2 if there is no run to read."""
    given = list(arguments)
    if given[1:2] in (["samples"], ["groups"]):
        from roll.cli import rows

        return rows.samples(given) if given[1] == "samples" else rows.groups(given)
    more = "roll show RUN samples: what the model said; roll show RUN groups: its database; each with --help."
    parser = argparse.ArgumentParser(prog="roll show", description="How a run is doing, and who takes part.", epilog=more)
    parser.add_argument("run", type=Path, metavar="RUN", help="its folder, running or over: <output_dir>/<exp_name>")
    parser.add_argument("--json", action="store_true", help="the same as data")
    options = parser.parse_args(given)
    try:
        told = facts(options.run)
        lines = [json.dumps(told, indent=2)] if options.json else list(as_text(told))
    except (OSError, ValueError, LookupError, TypeError) as error:
        print(f"error: {visible(str(options.run))} cannot be read as a run: {visible(str(error))}", file=sys.stderr)
        return 2
    print("\n".join(visible(line, keep="\n") for line in lines))
    return 0


def facts(run_dir: Path) -> dict[str, Any]:
    """Returns the known facts of a run, as data. Raises `OSError`, `ValueError`, `LookupError` or `TypeError`."""
    check_run(run_dir)
    run = RunReader(run_dir)
    told = run.status()
    address, path = groups_address(run_dir), run_dir / "summary.json"
    if address is None and not path.is_file():
        raise ValueError("it has neither groups.db nor summary.json")
    summary = json.loads(path.read_text()) if path.is_file() else {}
    alarms = [row["text"] for row in read_rows(run_dir / ALARMS)] if (run_dir / ALARMS).is_file() else []
    told |= {key: summary.get(key, ()) for key in ("warnings", "advice", "evaluation", "tags")} | {"alarms": alarms}
    if address is not None:
        return told | {"database": of_database(address, read_identity(run_dir))}
    shown = (REWARD, CUT, "staleness/mean", STEP_S, WAIT_S)
    last = {key: run.metrics.last[key] for key in shown if key in run.metrics.last}
    return told | {"metrics": last, "groups": summary.get("groups")}


def as_text(told: Mapping[str, Any]) -> Iterator[str]:
    head, *lines = _database_lines(told["database"], told) if "database" in told else _driver_lines(told)
    yield head
    if told["verdict"]:
        yield f"{'verdict':<10}{told['verdict']['kind']}: {told['verdict']['text']}"
    yield from lines
    for label, key in (("warning", "warnings"), ("advice", "advice"), ("alarm", "alarms")):
        yield from (f"{label:<10}{line}" for line in told[key])


def _driver_lines(told: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'run':<10}{told['state']}" + (f": {told['reason']}" if told["reason"] else "")
    if told["step"] is not None:
        yield f"{'step':<10}{told['step']}, " + ", ".join(f"{key} {value:.3g}" for key, value in told["metrics"].items())
    if told["validation"]:
        validated = Validated(**told["validation"])
        yield f"{'validated':<10}{validated.told()} (step {validated.step})"
    if told["groups"]:
        yield f"{'groups':<10}{_counts(told['groups'])}"
    yield from tag_lines(told["tags"] or {})
    yield from evaluation_lines(told["evaluation"])


def of_database(address: str, identity: RunIdentity | None) -> dict[str, Any]:
    from sqlalchemy import select

    from roll.topologies.sql.admittance import owner_of
    from roll.topologies.sql.connecting import reading
    from roll.topologies.sql.database import check_layout
    from roll.topologies.sql.tables import members, runs
    from roll.view.members import work_since

    with reading(address) as connection:
        check_layout(connection)
        run = connection.execute(select(runs)).one()
        if identity is not None and run.run_id != identity.id:
            raise ValueError(f"its database {redact_text(address)} is now that of {owner_of(run)}")
        first = {row.name: row.beat for row in connection.execute(select(members))}
        if run.status == "running":
            time.sleep(LOOK_S)
        rows = connection.execute(select(members).order_by(members.c.joined_at)).all()
        state = {row.name: row.state for row in rows}
        state |= {row.name: "silent" for row in rows if row.state == "alive" and first.get(row.name) == row.beat}
        counts = _groups_by_state(connection)
        work = {row.member: row for row in connection.execute(work_since(time.time() - RECENT_S))}
        explorers = [_explorer(row, state[row.name], work.get(row.name)) for row in rows if row.role != "trainer"]
    uses = run.trained + run.reused
    batch = uses // run.next_step if run.next_step and uses % run.next_step == 0 else None
    trainers = [
        {"name": row.name, "state": state[row.name], "pid": row.pid, "host": row.host} for row in rows if row.role != "explorer"
    ]
    owner = owner_of(run)
    return {
        "run": owner.exp_name, "folder": owner.folder,
        "status": run.status, "reason": run.reason,
        "steps": uses // batch if batch else run.next_step, "max_steps": run.max_steps,
        "published": run.newest, "served_by_all": run.version,
        "bound": staleness_bound(json.loads(run.contract)["async_generation_ratio"]),
        "groups": counts | {"reused": run.reused},
        "trainers": trainers, "explorers": explorers,
    }  # fmt: skip


def _database_lines(told: Mapping[str, Any], process: Mapping[str, Any]) -> Iterator[str]:
    """`process`: the run's own summary. A run whose trainer has stopped is still open to it in the database."""
    stopped = told["status"] == "running" and process["state"] in STOPPED
    state, reason = (process["state"], process["reason"]) if stopped else (told["status"], told["reason"])
    goes_on = "; its groups are kept, and the same command goes on with them" if stopped else ""
    yield f"{'run':<10}{state}" + (f": {reason}" if reason else "") + goes_on
    most = told["max_steps"] if told["max_steps"] is not None else "as many as its trainer says"
    yield f"{'steps':<10}{told['steps']} of {most}"
    versions = f"{told['published']} is published, all explorers serve {told['served_by_all']} or newer"
    yield f"{'versions':<10}{versions}; at most {told['bound']} late"
    yield f"{'groups':<10}{_counts(told['groups'])}"
    for one in told["trainers"]:
        yield f"{'trainer':<10}{one['name']} {STATES[one['state']]}, process {one['pid']} on {one['host']}"
    if not told["trainers"]:
        yield f"{'trainer':<10}has not begun: explorers stop at the bound"
    for one in told["explorers"]:
        lag = "" if one["lag"] is None else f", lag {one['lag']:.2f}"
        yield (
            f"{'explorer':<10}{one['name']} {STATES[one['state']]}, serves version {one['served']}; {one['groups']:,} groups, "
            f"{one['recent'] / RECENT_S:.2f} groups/s and {one['tokens'] / RECENT_S:,.0f} tokens/s in the last minute{lag}"
        )
    if not told["explorers"]:
        yield f"{'explorer':<10}none has joined: the trainer waits"


def _groups_by_state(connection: Any) -> dict[str, Any]:
    from sqlalchemy import func, select

    from roll.topologies.sql.tables import groups

    counted = connection.execute(select(groups.c.state, groups.c.reason, func.count()).group_by(groups.c.state, groups.c.reason))
    counts: dict[str, Any] = {"trained": 0, "buffered": 0, "in_flight": 0, "dropped": {}}
    for state, reason, count in counted:
        if state == "dropped":
            counts["dropped"][reason] = count
        else:
            counts[state] = count
    counts["admitted"] = sum(counts[key] for key in ("trained", "buffered", "in_flight")) + sum(counts["dropped"].values())
    return counts


def _explorer(row: Any, state: str, work: Any) -> dict[str, Any]:
    """`groups`: completed by the explorer; `recent`, `tokens`: of the last minute; `lag`: the mean of its trained groups."""
    done = {"groups": work.done, "recent": work.recent, "tokens": work.tokens or 0, "lag": work.lag} if work else NO_WORK
    return {"name": row.name, "state": state, "served": row.served} | done


def _counts(counts: Mapping[str, Any]) -> str:
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts["dropped"].items()))
    parts = [f"{counts[key]:,} {key.replace('_', ' ')}" for key in ("admitted", "trained", "buffered", "in_flight")]
    parts += [f"{sum(counts['dropped'].values()):,} dropped" + (f" ({dropped})" if dropped else "")]
    parts += [f"{reused:,} times one was trained again"] if (reused := counts.get("reused")) else []
    return ", ".join(parts)
