"""`roll verify RUN`: a run's files, checked against the invariants of every run. It reads files and trusts no code of the run.

They are: a group ends once, and is trained by `max_reuse` steps at most; every step trains a whole batch; no trained token is
older than the bound; no prompt of an epoch is lost or served twice; journals, checkpoints and summary agree.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import yaml

from roll.cli.verify_files import DAMAGE, REUSED, RunFiles, blake2b, prefix, read_run, rows, sha256
from roll.core.configs.sizes import counted
from roll.view.runs import check_run

GIVEN_BACK = {"explorer_lost", "rolled_back", "damaged"}
"""Reasons to drop a group whose prompt is served again: its explorer is gone, the versions that sampled it, or its samples."""


def violations(run: RunFiles) -> Iterator[str]:
    """One line for each promise that is broken."""
    yield from run.damaged
    for check in (_statuses, _reuses, _steps, _staleness, _prompts, _samples, _checkpoints, _summary, _stored):
        try:
            yield from check(run)
        except DAMAGE as error:
            why = f"a file has contents that no run writes ({type(error).__name__}: {error})"
            yield f"{check.__name__[1:]} cannot be checked: {why}"


def _statuses(run: RunFiles) -> Iterator[str]:
    for group_id, count in Counter(row["group_id"] for row in run.groups).items():
        if count > 1:
            yield f"group {group_id} has {count} statuses"
    for row in run.groups:
        if row["status"] not in ("trained", "dropped") or (row["status"] == "dropped") is not bool(row["reason"]):
            yield f"group {row['group_id']}: status {row['status']!r} with the reason {row['reason']!r}"


def _reuses(run: RunFiles) -> Iterator[str]:
    first = {row["group_id"]: row["step"] for row in run.trained}
    steps: dict[int, list[int]] = defaultdict(list)
    for row in run.reuses:
        steps[row["group_id"]].append(row["step"])
    for group_id, again in steps.items():
        if group_id < run.inherited["next_group_id"]:
            continue  # the run before this one may have trained it, too
        if group_id not in first:
            yield f"group {group_id} was trained again by step {again[0]}, and never before"
        elif (order := [first[group_id], *again]) != sorted(set(order)):
            yield f"group {group_id} was trained by steps {order}, not one after the other"
        if 1 + len(again) > run.max_reuse and again[-1] > run.resumed_from:
            yield f"group {group_id} was trained by {1 + len(again)} steps, max_reuse is {run.max_reuse}"


def _steps(run: RunFiles) -> Iterator[str]:
    by_step = Counter(row["step"] for row in run.uses)
    last, steps = max(by_step, default=0), range(run.inherited["step"] + 1, max(by_step, default=0) + 1)
    if by_step and sorted(by_step) != list(steps):
        yield f"steps without groups: {sorted(set(steps) - by_step.keys())}"
    # Groups are written one by one: a run that goes on, or was killed, may have written a part of its last step.
    whole = {step: count for step, count in by_step.items() if step != last or run.over}
    if len(set(whole.values())) > 1 or (whole and by_step[last] > max(whole.values())):
        yield f"steps trained different numbers of groups: {dict(Counter(by_step.values()))}"
    measured = [row["step"] for row in run.metrics if "time/step_s" in row]
    if measured != sorted(set(measured)):
        yield "metrics.jsonl has steps twice or out of order"
    for version, count in Counter(row["step"] for row in run.metrics if "time/validation_s" in row).items():
        if count > 1:
            yield f"metrics.jsonl has {count} validations of version {version}"
    running = run.summary is not None and run.summary.get("status") == "running"
    most = math.inf if running else 1  # steps without metrics: of a run that goes on, or was killed between two writes
    if measured and by_step and not 0 <= last - measured[-1] <= most:
        yield f"metrics.jsonl ends with step {measured[-1]}, groups.jsonl with step {last}"


def _staleness(run: RunFiles) -> Iterator[str]:
    for row in run.uses:
        oldest = row["step"] - 1 - row["lag"]
        if not 0 <= row["lag"] <= (bound := run.bounds[row["step"]]):
            yield f"group {row['group_id']} was trained {row['lag']} versions late, the bound is {bound}"
        if oldest < row["start_version"]:
            yield f"group {row['group_id']} started under version {row['start_version']} and has a token of version {oldest}"


def _prompts(run: RunFiles) -> Iterator[str]:
    for uid, count in Counter(row["prompt_uid"] for row in run.groups if row["reason"] not in GIVEN_BACK).items():
        if count > 1:
            yield f"prompt {uid} was served {count} times"
    epochs: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for row in run.groups if run.over else ():
        domain, epoch, name = row["prompt_uid"].split("/", 2) if row["prompt_uid"].count("/") > 1 else ("", "", "")
        if epoch.isdigit() and domain.split("@")[0] != "train":  # environments are numbered, they have no epochs
            epochs[domain][int(epoch)].add(name)
    for domain, by_epoch in epochs.items():
        whole = set().union(*by_epoch.values())
        told = (run.summary or {}).get("prompts_left_out", {}).get(domain, {})
        begun = 1 if run.inherited["step"] else 0  # an epoch that another run had begun is not whole here
        for epoch, names in sorted(by_epoch.items())[begun:-1]:
            left_out = told.get(str(epoch), 0)
            if lost := len(whole - names) - left_out:
                of, besides = (
                    f"epoch {epoch} of domain {domain}",
                    f" besides {left_out} that pass rates left out" if left_out else "",
                )
                yield f"{lost} prompts of {of} were lost{besides}, e.g. {min(whole - names, default='none')}"


def _samples(run: RunFiles) -> Iterator[str]:
    start = {row["group_id"]: row["start_version"] for row in run.groups}
    damaged = list[str]()
    for row in chain.from_iterable(rows(path, "samples", damaged) for path in run.samples):
        who = f"sample {row['index']} of group {row['group_id']} (step {row['step']})"
        spans, length = row["versions"], len(row["response_ids"])
        if len(row["behaviour_logprobs"]) != length:
            yield f"{who} has {len(row['behaviour_logprobs'])} log-probs for {length} tokens"
        if any(not 0 <= begin < end <= length for begin, end, *_ in spans):
            yield f"{who} has version spans {spans} for {length} tokens"
        first, last = start.get(row["group_id"], 0), row["step"] - 1
        if row["status"] == "trained" and any(not first <= version <= last for _, _, version, *_ in spans):
            yield f"{who} has tokens of versions {sorted({span[2] for span in spans})}, not of {first} to {last}"
        if row["status"] == "validation" and any(span[2] != row["step"] for span in spans):
            yield f"{who}: a validation of version {row['step']} has tokens of {sorted({span[2] for span in spans})}"
    yield from damaged


def _checkpoints(run: RunFiles) -> Iterator[str]:
    steps = {status: Counter(row["step"] for row in of) for status, of in (("trained", run.trained), (REUSED, run.reuses))}
    for manifest in run.checkpoints:
        folder, damaged = manifest.parent, list[str]()
        try:
            listed = json.loads(manifest.read_text())
            state = json.loads((folder / "pipeline.json").read_text())
            step, accounts, record = listed["step"], state["admission"], state["record"]
            wrong = [name for name, digest in listed["files"].items() if sha256(folder / name) != digest]
            buffered = {row["group_id"]: row.get("uses", 0) for row in rows(folder / "buffer.jsonl", "buffer", damaged)}
            numbers = {status: sum(of_step[one] for one in of_step if one <= step) for status, of_step in steps.items()}
            numbers = {status: count + run.inherited[status] for status, count in numbers.items()}
            uses = Counter({status: accounts.get(status, 0) for status in numbers})
            written = prefix(run.folder / "groups.jsonl", record["groups"])
            before = Counter(row["group_id"] for row in written)
            statuses = sum(row["status"] != REUSED for row in written) + run.ended_inherited
            digests = record["digests"]
            changed = [
                name for name in digests if blake2b(run.folder / f"{name}.jsonl", record[name]) not in (digests[name], None)
            ]
        except (OSError, *DAMAGE) as error:
            yield f"{folder.name}: {type(error).__name__}: {error}"
            continue
        yield from (f"{folder.name}: {line}" for line in damaged)
        if wrong:
            yield f"{folder.name}: {', '.join(wrong)} is not what was saved"
        for name in changed:
            yield f"{name}.jsonl: rows before {folder.name} were changed or lost"
        for status in [status for status in numbers if uses[status] != numbers[status]]:
            yield f"{folder.name} counts {uses[status]} {status} groups, groups.jsonl {numbers[status]} up to step {step}"
        if doubled := [group_id for group_id, count in buffered.items() if before[group_id] and not count]:
            yield f"{folder.name} buffers groups that had ended: {sorted(doubled)[:5]}"
        own = {group_id: count for group_id, count in buffered.items() if group_id >= run.inherited["next_group_id"]}
        if wrong := [group_id for group_id, count in own.items() if count and before[group_id] != count]:
            yield f"{folder.name} has other numbers of uses than groups.jsonl: of groups {sorted(wrong)[:5]}"
        if (total := accounts["trained"] + sum(accounts["dropped"].values())) != statuses:
            yield f"{folder.name} counts {total} statuses, groups.jsonl has {statuses} where the checkpoint stands"


def _summary(run: RunFiles) -> Iterator[str]:
    if run.summary is None or "groups" not in run.summary:
        return
    accounts, before = run.summary["groups"], run.inherited
    dropped = Counter(before["dropped"]) + Counter(row["reason"] for row in run.groups if row["status"] == "dropped")
    trained, reused = len(run.trained) + before["trained"], len(run.reuses) + before[REUSED]
    if accounts["admitted"] != accounts["trained"] + accounts["buffered"] + accounts["in_flight"] + sum(
        accounts["dropped"].values()
    ):
        yield f"the accounts of summary.json do not balance: {accounts}"
    if "as_of" not in run.summary and (accounts["trained"], accounts["dropped"]) != (trained, dict(dropped)):
        journal = f"{trained} and {dict(dropped)}"
        yield f"summary.json counts {accounts['trained']} trained and {accounts['dropped']}, groups.jsonl {journal}"
    if "as_of" not in run.summary and accounts.get(REUSED, 0) != reused:
        yield f"summary.json counts {accounts.get(REUSED, 0)} reused, groups.jsonl {reused}"
    if run.over and (accounts["buffered"] or accounts["in_flight"]):
        yield f"a finished run has groups without a terminal status: {accounts}"


def _stored(run: RunFiles) -> Iterator[str]:
    """The database and the journal tell the same of every group. The journal of a run that is running may be behind."""
    if run.database is None:
        return
    for row in run.groups:
        stored = run.database.groups.get(row["group_id"])
        said = {key: row[key] for key in ("prompt_uid", "status", "reason", "step", "start_version", "lag")}
        if stored is None or (run.over and {key: stored[key] for key in said} != said):
            yield f"group {row['group_id']}: groups.jsonl says {said}, the database {stored}"
    if run.over:
        unknown = run.database.groups.keys() - {row["group_id"] for row in run.groups}
        if unknown:
            yield f"the database has {len(unknown)} groups that groups.jsonl lacks, e.g. {min(unknown)}"
        first = run.inherited["next_group_id"]
        own = sorted(group_id for group_id in run.database.groups if group_id >= first)
        if own != list(range(first, first + len(own))):
            yield f"groups of the database are not numbered from {first} without gaps"
        written = {(row["group_id"], row["step"], row["lag"]) for row in run.reuses}
        if other := written ^ run.database.reuses:
            yield f"the database and groups.jsonl have different reuses: {sorted(other)[:3]} (group, step, lag)"


def main(arguments: Sequence[str]) -> int:
    """Returns 0 if all promises are kept, 1 if one is broken, 2 if there is no run to read."""
    parser = argparse.ArgumentParser(prog="roll verify", description="Checks a run's files against the invariants of every run.")
    parser.add_argument("run", type=Path, help="the folder of a run, running or over: <output_dir>/<exp_name>")
    parser.add_argument("--json", action="store_true", help="the same as data")
    options = parser.parse_args(arguments)
    try:
        check_run(options.run)
        run = read_run(options.run)
    except (OSError, yaml.YAMLError, *DAMAGE) as error:
        print(f"error: {options.run} cannot be read as a run: {error}", file=sys.stderr)
        return 2
    found = list(violations(run))
    status = run.summary.get("status", "running") if run.summary else "running, or killed"
    if options.json:
        numbers = {"groups": len(run.groups), "trained": len(run.trained), "trained_again": len(run.reuses)}
        facts = {"ok": not found, "run": str(options.run), "status": status, **numbers, "checkpoints": len(run.checkpoints)}
        print(json.dumps(facts | {"broken": found, "notes": run.notes}, indent=2))
        return 1 if found else 0
    for line in found:
        print(f"broken: {line}")
    for line in run.notes:
        print(f"note: {line}")
    again = f" and {len(run.reuses)} times one again" if run.reuses else ""
    told = (
        f"{counted(len(run.groups), 'group')}, {len(run.trained):,} trained{again}, {counted(len(run.checkpoints), 'checkpoint')}"
    )
    print(f"{options.run} ({status}): {told}; {counted(len(found), 'promise') if found else 'no promises'} broken")
    return 1 if found else 0
