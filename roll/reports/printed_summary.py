"""The end of a run as text: how it went and where its results are; and the table of an evaluation."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from roll.core.configs.redact import visible
from roll.core.configs.sizes import counted, duration
from roll.core.record.estimates import CONFIDENCE, Estimate, Validated
from roll.reports.by_tag import as_table
from roll.reports.display import LABEL, Printed
from roll.reports.verdict import listed


def print_summary(summary: dict[str, Any], run_dir: Path, console: Console | None = None) -> None:
    """The end of a run: how it went, and where its results are. `summary` as in summary.json; absent parts are left out."""
    console, here = console or Printed(), Path.cwd()
    shown = str(run_dir.relative_to(here) if run_dir.is_relative_to(here) else run_dir)
    console.print()
    if console.is_terminal:
        table = Table.grid(padding=(0, 3))
        table.add_column(style=LABEL, no_wrap=True, min_width=14)
        table.add_column(overflow="fold")
        for label, value in _summary_rows(summary):
            table.add_row(label, Text(visible(value)))
        console.print(table)
    else:  # how wide the reader's window will be is not known
        for label, value in _summary_rows(summary):
            console.print(Text(f"{label:<17}{visible(value)}"), soft_wrap=True)
    for line in (*tag_lines(summary.get("tags", {})), *evaluation_lines(summary.get("evaluation", ()))):
        console.print(Text(visible(line)), soft_wrap=True)
    # Not in the table: a path that is folded cannot be copied.
    console.print(Text.assemble((f"{'results':<17}", LABEL), shown), soft_wrap=True)
    names = ("summary.json", "metrics.jsonl", "learning_curve.png", "samples.jsonl", "checkpoints")
    if present := [name for name in names if (run_dir / name).exists()]:
        console.print(Text(" " * 17 + "  ".join(present), LABEL), soft_wrap=True)
        console.print(Text.assemble((f"{'see it':<17}", LABEL), f"{_command()} ui {shlex.quote(shown)}"), soft_wrap=True)


def _command() -> str:
    """`roll` as it can be typed here: an environment may not be active."""
    beside = Path(sys.executable).with_name("roll")
    if shutil.which("roll") or not beside.exists():
        return "roll"
    return os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside)


def _steps(summary: dict[str, Any], steps: int, resumed: int) -> str:
    if 0 < resumed == steps:  # the times are those of the start that trained them
        return f"0 of {steps}: all were trained before this start"
    of_all = f" of {steps}, resumed" if resumed else ""
    started = f"; started in {duration(summary['started_s'])}" if summary.get("started_s") else ""
    return f"{steps - resumed}{of_all} in {duration(summary.get('wall_s', 0.0))}{started}"


def _summary_rows(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    status = summary.get("status", "?")
    reason = f": {summary['reason']}" if summary.get("reason") else ""
    yield "run", f"{status}{reason}"
    if found := summary.get("verdict"):
        yield "verdict", f"{found['kind']}: {found['text']}"
    if "steps" in summary:
        yield "steps", _steps(summary, summary["steps"], summary.get("resumed_from_step", 0))
    if kept := summary.get("checkpoint"):
        yield "checkpoint", "; ".join(filter(None, (f"step {kept['step']}" if kept["step"] else "", kept["lost"]))) or "none"
    if "evaluation" in summary:
        yield from _evaluated(summary, summary["evaluation"])
    if validation := summary.get("validation"):
        ends = [Validated(**validation[i]) for i in ((0, -1) if len(validation) > 1 else (-1,))]
        yield "validation", " → ".join(f"{each.told()} (step {each.step})" for each in ends)
    yield from _incidents(summary)
    if skipped := summary.get("prompts_skipped"):
        yield "prompts left out", listed(skipped)
    if groups := summary.get("groups"):
        yield "groups", ", ".join(_statuses(groups))
    if staleness := summary.get("staleness"):
        yield "staleness", f"mean {staleness['mean']:.2f}, max {staleness['max']}, bound {staleness['bound']}"
    if idle := summary.get("idle_share"):
        yield "idle", ", ".join(f"{role} {share:.0%}" for role, share in idle.items()) + " of the whole run"
    for line in summary.get("advice", []):
        yield "advice", line
    updates = summary.get("weight_updates") or {}
    if published := not updates.get("count") and updates.get("published"):
        yield "weight updates", f"{published} published"
    elif updates:
        pauses = f"mean {updates['pause_s_mean'] * 1000:.0f} ms, max {updates['pause_s_max'] * 1000:.0f} ms"
        yield "weight updates", f"{updates['count']}, pause {pauses}"
    if speed := summary.get("throughput"):
        yield "throughput", f"{speed['samples_per_s']:,.1f} samples/s, {speed['response_tokens_per_s']:,.0f} response tokens/s"


def _statuses(groups: dict[str, Any]) -> Iterator[str]:
    for name in ("admitted", "trained", "buffered", "in_flight"):
        if name in groups:
            yield f"{groups[name]:,} {name.replace('_', ' ')}"
    dropped = groups.get("dropped") or {}
    yield f"{sum(dropped.values()):,} dropped" + (f" ({listed(dropped)})" if dropped else "")
    if reused := groups.get("reused"):
        yield f"{reused:,} times one was trained again"


def _incidents(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for alarm in summary.get("alarms", []):
        yield "alarm", alarm["text"]
    for warning in summary.get("warnings", []):
        yield "warning", warning
    for stage, kinds in summary.get("stage_errors", {}).items():
        for on_error, errors in kinds.items():
            times = counted(sum(errors.values()), "time")
            yield "stage", f"{stage} has failed {times} (on_error: {on_error}; {listed(errors)})"
    if seconds := summary.get("trainer_recovery_s"):
        yield "trainer", f"started again {counted(len(seconds), 'time')}, which took {duration(sum(seconds))}"
    if (since := summary.get("synchronous_since")) is not None:
        yield "schedule", f"synchronous since step {since}: too many workers had to be replaced"


def _evaluated(summary: dict[str, Any], models: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    yield "evaluated", f"{counted(len(models), 'model')} in {duration(summary.get('wall_s', 0.0))}"
    if errors := sum(model["errors"] for model in models):
        yield "errors", f"{errors:,} rollouts failed or could not be judged"


def evaluation_lines(evaluation: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """`evaluation`: as summary.json has it."""
    for name in dict.fromkeys(name for row in evaluation for name in row["sets"]):
        rows = [(row["model"], part, estimates) for row in evaluation for part, estimates in row["sets"].get(name, {}).items()]
        columns = list(dict.fromkeys(figure for *_, estimates in rows for figure in estimates))
        if not columns:  # the environment does not say what a success is
            yield from ("", f"{name} (mean score, for there is no accuracy)")
            scores = [(row["model"], row.get("scores", {}).get(name)) for row in evaluation]
            yield from _aligned([[model, "-" if score is None else f"{score:.3g}"] for model, score in scores], 1)
            continue
        cells = [["", "", "prompts", *columns]]
        for model, part, estimates in rows:
            shown = {figure: Estimate(**values) for figure, values in estimates.items()}
            prompts = max((estimate.prompts for estimate in shown.values()), default=0)
            figures = [_cell(shown[column]) if column in shown else "-" for column in columns]
            cells.append([model, "" if part == "all" else part, f"{prompts:,}", *figures])
        yield ""
        yield f"{name} (with {CONFIDENCE:.0%} confidence intervals)"
        yield from _aligned(cells, 2)


def tag_lines(tags: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """`tags`: as summary.json has them: trained episodes of each, and its first and last rewards."""
    if rows := list(as_table(tags)):
        yield ""
        yield from _aligned(rows, 1)


def _aligned(rows: Sequence[Sequence[str]], names: int) -> Iterator[str]:
    """`names`: columns of names, which begin at the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            text.ljust(width) if place < names else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _cell(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
