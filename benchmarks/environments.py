"""What do environments pay players that cannot do the task? Audits every environment that is here, as `roll env audit` does, and
writes docs_roll/environment_table.md.

Here are the built-in ones, gymnasium's that text can play, and those of the interpreters that `roll env list` names: `make
test-envs` makes the usual five. Each audit is a process with a time limit. Stopped and started again, it goes on: results are
kept in benchmarks/results/environments.jsonl.

    python benchmarks/environments.py [--limit_s 120] [--side_by_side 2] [--only SUBSTRING] [--write]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from importlib.metadata import version
from pathlib import Path
from subprocess import TimeoutExpired, run
from typing import Any

import gymnasium

from roll.configs.problems import ConfigError
from roll.distributed.interpreters import usual
from roll.envs.audit import REFERENCE
from roll.envs.packages import KNOWN
from roll.envs.players import CHANCE, KINDS, SENSELESS
from roll.envs.registry import make_env

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs_roll" / "environment_table.md"
RESULTS = ROOT / "benchmarks" / "results" / "environments.jsonl"
TRAINED = RESULTS.with_name("multi_task.json")
"""What benchmarks/multi_task.py has trained, if it was run."""
ROLL = [sys.executable, "-m", "roll.cli.main"]
TASKS = {"question": 40, "game": 12}
"""Of each environment: among questions with two answers, few tasks say nothing."""
KIND = {"reasoning_gym": "question", "textarena": "game", "gem": "game", "verifiers": "question", "openenv": "game"}
COLUMNS = (
    *("environment", "package", "kind", "repeats by seed", "reference", "chance", "best without the task", "ms a step"),
    "trained here",
)
TEXT: Any = {"capture_output": True, "text": True}
Target = tuple[str, str, str, list[str]]
"""Its name in the table, package and version, kind, arguments of `roll env audit`."""


def targets() -> Iterator[Target]:
    ours = f"roll {version('roll')}"
    yield from ((name, ours, "game", [name, "--config", "max_steps=40"]) for name in ("frozen_lake", "sokoban"))
    for env_id in sorted(gymnasium.registry):
        for drawn in ({}, {"env_kwargs": {"render_mode": "ansi"}}):
            try:
                make_env("gymnasium", {"env_id": env_id, **drawn}).close()
            except ConfigError:
                continue
            given = [f"env_id={env_id}", "max_steps=40", *(f"{key}={json.dumps(value)}" for key, value in drawn.items())]
            yield f"gymnasium:{env_id}", f"gymnasium {gymnasium.__version__}", "game", ["gymnasium", "--config", *given]
            break
    for package, known in KNOWN.items():
        if usual(package) is None:
            continue
        offer = json.loads(run([*ROLL, "env", "list", package, "--json"], check=True, **TEXT).stdout)[package]
        for env_id in offer["ids"]:
            if not env_id.startswith("rg:"):  # reasoning-gym's families, which stand here themselves
                name = f"{package}:{env_id}"
                yield name, f"{package} {offer['version']}", KIND[known.env_type], [name]


def audited(target: Target, limit_s: float) -> dict[str, Any]:
    name, package, kind, arguments = target
    tasks = TASKS[kind]
    started = time.perf_counter()
    row = {"name": name, "package": package, "kind": kind, "tasks": tasks}
    try:
        command = [*ROLL, "env", "audit", *arguments[:1], "--tasks", str(tasks), "--json", *arguments[1:]]
        done = run(command, timeout=limit_s, **TEXT)
        told = json.loads(done.stdout)["targets"][0] if done.returncode < 2 else {}
        row |= {"report": told, "why": "" if told else done.stderr.strip().splitlines()[-1][:300]}
    except TimeoutExpired:
        row |= {"report": {}, "why": f"not done within {limit_s:g} s"}
    return row | {"seconds": round(time.perf_counter() - started, 1)}


def unplayed(row: Mapping[str, Any]) -> str:
    """Why nothing is known of it, or of players that draw; empty if something is."""
    report = row["report"]
    if not report:
        return str(row["why"])
    failed = [each for each in report["problems"] if each.startswith(f"{CHANCE}: ")]
    return failed[0].partition("no reward: ")[2] if failed and report["players"][CHANCE]["failed"] == row["tasks"] else ""


def trained() -> dict[str, str]:
    """The mean return of environments before and after they were trained, by their names in the table."""
    told = json.loads(TRAINED.read_text()) if TRAINED.exists() else {"rows": {}, "tags": {}}
    scores = {tag: told["tags"].get(tag, {}).get("score") for tag in told["rows"]}
    return {row: "{:.3g} → {:.3g}".format(*scores[tag]) for tag, row in reversed(told["rows"].items()) if scores[tag]}


def cells(row: Mapping[str, Any], learnt: Mapping[str, str]) -> list[str]:
    report = row["report"]
    if why := unplayed(row):
        return [f"`{row['name']}`", row["package"], row["kind"], "", "", "", f"not played: {plain(why, 90)}", "", ""]
    players = {name: line["mean"] for name, line in report["players"].items()}
    kind = max((each for each in ("constant", *SENSELESS) if each in players), key=lambda each: players[each])
    text = report["players"][kind]["text"]
    found = any(pays(problem) for problem in report["problems"])
    exploit = f"{kind} {plain(text)} {players[kind]:.2f}".replace("  ", " ")
    reference = f"{players[REFERENCE]:.2f}" if REFERENCE in players else "none"
    repeats = "no" if any("second time" in problem for problem in report["problems"]) else "yes"
    pay = f"**{exploit}**" if found else exploit
    return [
        *(f"`{row['name']}`", row["package"], row["kind"], repeats, reference, f"{players[CHANCE]:.2f}"),
        *(pay, f"{report['step_ms']:.2g}", learnt.get(row["name"], "")),
    ]


def pays(problem: str) -> bool:
    return problem.startswith(("pays for nonsense", "the reference earns", "everybody earns"))


def plain(text: str, most: int = 40) -> str:
    """A text as part of a table's cell."""
    line = " ".join(text.split()).replace("|", "/").replace("`", "'")
    return "" if not line else f"`{line[:most]}`"


def problems(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What can be told to those who maintain the packages."""
    for row in rows:
        said = [] if unplayed(row) else row["report"]["problems"]
        lost = [problem for problem in said if "tasks have no reward" in problem]
        for problem in [*(each for each in said if each not in lost), *lost[:1]]:
            yield f"* `{row['name']}`: {' '.join(problem.split())[:400]}"


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    audited_rows = [row for row in rows if not unplayed(row)]
    nonsense = [row for row in audited_rows if any(map(pays, row["report"]["problems"]))]
    unequal = [row for row in audited_rows if any("second time" in each for each in row["report"]["problems"])]
    counts, learnt = Counter(row["package"] for row in rows), trained()
    lines = [
        "# Environments, audited",
        "",
        f"Written by `benchmarks/environments.py` on {date.today()}: {len(rows)} environments and task families. Games:",
        f"{TASKS['game']} tasks each, families of questions: {TASKS['question']}.",
        f"{len(audited_rows)} were played; {len(nonsense)} pay for something else than the task,",
        f"{len(unequal)} do not repeat by their seed.",
        "",
        ", ".join(f"{package}: {count}" for package, count in sorted(counts.items())) + ".",
        "",
        "*reference*: what the oracle, or the reference answer, earns. *chance*: what drawn answers earn. *best without the",
        "task*: the highest mean of a player that cannot do the task, what it writes, and what it earns; bold where the audit",
        "calls it a problem ([what it pays for](environments.md#what-it-pays-for)). All are means over tasks; times of a step",
        "were taken beside other work. *trained here*: the mean return of a tiny model before and after",
        "[a run with twenty of them](agentic.md#twenty-environments-at-once). The players:",
        "",
        *(f"* *{kind}* {does}" for kind, does in KINDS.items() if kind in ("constant", *SENSELESS)),
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
        *(f"| {' | '.join(cells(row, learnt))} |" for row in rows),
        "",
        "## What the audit calls a problem",
        "",
        *(found if (found := list(problems(rows))) else ["Nothing."]),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit_s", type=float, default=120.0)
    parser.add_argument("--side_by_side", type=int, default=2)
    parser.add_argument("--only", default="", help="part of a name")
    parser.add_argument("--write", action="store_true", help="write the page of what is known, and audit nothing")
    options = parser.parse_args()
    RESULTS.parent.mkdir(exist_ok=True)
    kept = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    known = {row["name"]: row for row in kept if row["tasks"] == TASKS[row["kind"]]}
    wanted = list(targets())
    chosen = [target for target in wanted if not options.write and options.only in target[0] and target[0] not in known]
    with ThreadPoolExecutor(options.side_by_side) as pool, RESULTS.open("a") as file:
        for row in pool.map(lambda target: audited(target, options.limit_s), chosen):
            known[row["name"]] = row
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{row['seconds']:6.1f} s  {' | '.join(cells(row, {}))}", flush=True)
    PAGE.write_text(page([known[name] for name, *_ in wanted if name in known]))


if __name__ == "__main__":
    main()
