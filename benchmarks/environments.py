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

from roll.core.configs.problems import ConfigError
from roll.envs.audit import REFERENCE
from roll.envs.packages import KNOWN
from roll.envs.registry import make_env
from roll.graders.players import CHANCE, KINDS, SENSELESS
from roll.platform.interpreters import usual

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs_roll" / "environment_table.md"
RESULTS = ROOT / "benchmarks" / "results" / "environments.jsonl"
LEARNT = ROOT / "docs_roll" / "environments_learnt.jsonl"
"""What benchmarks/environments_learn.py has trained."""
ROLL = [sys.executable, "-m", "roll.cli.main"]
TASKS = {"question": 40, "game": 12}
"""Of each environment: among questions with two answers, few tasks say nothing."""
KIND = {"reasoning_gym": "question", "textarena": "game", "gem": "game", "verifiers": "question", "openenv": "game"}
COLUMNS = (
    *("environment", "package", "kind", "repeats by seed", "reference", "chance", "best without the task", "ms a step"),
    "trained here",
)
PROBLEMS = "## What the audit calls a problem"
TAUGHT = "Trained here"
LEARNT_TEXT = """\
Written by `benchmarks/environments_learn.py`: each of {count} trained by itself, with a tiny model of its own (0.3
million parameters, one core); {learned} learned. The model begins with the form of an answer: *taught* is the share
of its lessons that had the right one; the others had that to another question, or a move at random. Returns are the
environment's own, sampled, means with standard errors over *n* tasks of seeds that no lesson has, the same tasks
before and after; *gain* is the mean of the differences, and what is beyond three standard errors counts as learned, unless
one answer to all would earn as much: *commonest* is the share of questions that it would be right for, in a game the
mean return of the best move, made in every turn.
*met*: share of these questions that training has asked, too, for a family may ask the same under another seed.
*steps*: of so many episodes; *seconds*: lessons and training, beside other work.

In CliffWalking it is learned not to fall, in Taxi not to try what is forbidden: neither arrives, and who always goes up, or
south, earns as much. FrozenLake-v1 is one map, here without slips, and its way is learned by heart; CartPole falls later, no
episode having more than 40 turns. CliffWalkingSlippery was trained with `step_reinforce`, without `reward_normalization`: there
every turn's return is below zero, so whatever is sampled becomes rarer, and in the end the form is unlearned. The families of
reasoning-gym that did not learn began near chance: too little was taught for the rewards to tell right from wrong;
`ransom_note` lost its form, too, at a learning rate of 1e-3. After that was seen, the others were taught the right answer in
half of their lessons, in 700 to 1,500 steps, and trained at 3e-4. What number_sorting
has learned is little: one answer of fifteen is right.
"""
LEARNED, CONSTANT = "yes", "an answer to all"
LEARNT_COLUMNS = (
    *("environment", "settings", "taught", "steps", "before", "after", "commonest", "gain"),
    *("learned", "n", "met", "seconds"),
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


def cells(row: Mapping[str, Any]) -> list[str]:
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
        *(pay, f"{report['step_ms']:.2g}", ""),
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
    counts = Counter(row["package"] for row in rows)
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
        "were taken beside other work. *trained here*: the mean return of a tiny model before and after a run of its",
        f"own ([below](#{TAUGHT.lower().replace(' ', '-')})). The players:",
        "",
        *(f"* *{kind}* {does}" for kind, does in KINDS.items() if kind in ("constant", *SENSELESS)),
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
        *(f"| {' | '.join(cells(row))} |" for row in rows),
        "",
        PROBLEMS,
        "",
        *(found if (found := list(problems(rows))) else ["Nothing."]),
    ]
    return "\n".join(lines) + "\n"


def with_learnt(text: str) -> str:
    """The page, with what was trained: in the last column of the table, and in a part of its own."""
    rows = {row["row"]: row for row in map(json.loads, LEARNT.read_text().splitlines())}
    gone = {name: "{:.3g} → {:.3g}".format(row["before"][0], row["after"][0]) for name, row in rows.items()}
    above, problems = text.split(PROBLEMS)
    lines = above.partition(f"## {TAUGHT}")[0].rstrip().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("| `"):
            cells_of = line.split(" | ")
            lines[number] = " | ".join([*cells_of[:-1], f"{gone.get(cells_of[0].strip('| `'), '')} |"])
    taught = [f"| {' | '.join(learnt_cells(row))} |" for row in rows.values()]
    head = [f"| {' | '.join(LEARNT_COLUMNS)} |", f"|{'---|' * len(LEARNT_COLUMNS)}"]
    learned = [verdict(row) for row in rows.values()].count(LEARNED)
    said = LEARNT_TEXT.format(count=len(rows), learned=learned)
    return "\n".join([*lines, "", f"## {TAUGHT}", "", said, *head, *taught, "", PROBLEMS]) + problems


def verdict(row: Mapping[str, Any]) -> str:
    """Whether a run has taught more than noise, and than one answer to all."""
    gain, error = row["gain"]
    if gain <= 3 * error:
        return "no"
    return CONSTANT if row["after"][0] <= row["commonest"] + 3 * row["after"][1] else LEARNED


def learnt_cells(row: Mapping[str, Any]) -> list[str]:
    config = {name: value for name, value in row["env_config"].items() if name not in ("env_id", "action_pattern")}
    before, after, gain = ("{:.3g} ± {:.2g}".format(*row[name]) for name in ("before", "after", "gain"))
    return [
        *(f"`{row['row']}`", plain(json.dumps(config).strip("{}"), 200), f"{row['right']:.0%}" if row["right"] else "form alone"),
        *(f"{row['steps']} × {row['episodes']}", before, after, f"{row['commonest']:.3g}"),
        *(gain, verdict(row)),
        *(str(row["n"]), "" if row["met"] is None else f"{row['met']:.1%}", str(row["taught_s"] + row["trained_s"])),
    ]


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
            print(f"{row['seconds']:6.1f} s  {' | '.join(cells(row))}", flush=True)
    audits = [known[name] for name, *_ in wanted if name in known]
    PAGE.write_text(with_learnt(page(audits) if audits else PAGE.read_text()))


if __name__ == "__main__":
    main()
