"""Display of a running run: a live view on a terminal, plain lines anywhere else.

The display only draws the snapshots it is given; it knows neither clock nor pipeline. While the view is live, printed and logged
lines appear above it, and `close` restores everything."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleRenderable, Group, RenderableType
from rich.control import Control
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import ControlType
from rich.table import Table
from rich.text import Text

from roll.core.configs.redact import visible
from roll.core.configs.sizes import compact, duration
from roll.core.record.estimates import Validated
from roll.core.record.run_progress import RunProgress
from roll.reports.verdict import Level, Verdict

logger = logging.getLogger(__name__)

SPARKS = "▁▂▃▄▅▆▇█"
LABEL = "bright_black"
STYLES: dict[Level, str] = {"good": "green", "warning": "yellow", "error": "bold red", "": "default"}
"""Style of a verdict's level."""
QUIET_S = 60.0
"""Longest silence without a view; it doubles until something is reached."""


@dataclass(frozen=True)
class RunSnapshot(RunProgress):
    """Progress of a run, with the results of its steps and validations."""

    reward: float | None = None
    """Mean training reward of the last step."""
    loss: float | None = None
    """Loss of the last step of a run that trains rows, and has no rewards."""
    cut: float | None = None
    """Share of the last step's responses that ended at the length limit."""
    validation: list[Validated] = field(default_factory=list)
    """In the order in which they were measured."""
    verdict: Verdict | None = None
    staleness_now: float | None = None
    """Mean lag of the last step's samples, in policy versions."""


class Printed(Console):
    """Standard output, without which a run goes on: at Ctrl-C `| tee` ends at once, and the run has a checkpoint to write."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        logger.warning("whoever read the standard output has ended: the run goes on without it")


class Display:
    """`live`: None decides by itself: a terminal, and no continuous integration. `logging_steps`: steps between plain lines."""

    def __init__(self, console: Console | None = None, live: bool | None = None, logging_steps: int = 1) -> None:
        self.console = console or Printed()
        if live is None:
            live = self.console.is_terminal and not self.console.is_dumb_terminal and not os.environ.get("CI")
        self._logging_steps = logging_steps
        self._validations_printed: int | None = None
        self._verdict_printed: str | None = None
        self._quiet_until_s = QUIET_S
        self._live: _View | None = None
        self._moved: list[tuple[logging.StreamHandler[Any], Any]] = []
        if live:
            streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
            self._live = _View(self.console)
            self._live.start()  # sys.stdout and sys.stderr now print above the view; handlers made before still hold the old ones
            for handler in _stream_handlers():
                if any(handler.stream is stream for stream in streams):
                    self._moved.append((handler, handler.stream))
                    handler.setStream(sys.stderr)

    def step(self, snapshot: RunSnapshot) -> None:
        """A step is complete. Without a view, every `logging_steps`-th one and the last have a line, however fast they come."""
        if not self._live and (snapshot.step % self._logging_steps == 0 or snapshot.step == snapshot.max_steps):
            self._print_progress(snapshot)

    def update(self, snapshot: RunSnapshot) -> None:
        """Redraws the view; without one, prints a line at the start, after a validation, and about long-lasting work."""
        if self._live:
            self._live.update(draw(snapshot), refresh=True)
        elif len(snapshot.validation) != self._validations_printed:
            self._print_progress(snapshot)
        elif snapshot.elapsed_s >= self._quiet_until_s and snapshot.roles:
            doing = ", ".join(f"{role.name} {role.state} for {duration(role.since_s)}" for role in snapshot.roles)
            self._print(f"{snapshot.reached}  {doing}  elapsed {duration(snapshot.elapsed_s)}")
            self._quiet_until_s = 2 * snapshot.elapsed_s
        else:
            self._print_verdict(snapshot)

    def note(self, line: str) -> None:
        """Prints one line that stays, about an event worth knowing."""
        self._print(line)

    def close(self) -> None:
        """Takes the view away. May be called twice."""
        if self._live:
            self._live.stop()
            self._live = None
        for handler, stream in self._moved:
            handler.setStream(stream)
        self._moved = []

    def _print_progress(self, snapshot: RunSnapshot) -> None:
        self._validations_printed = len(snapshot.validation)
        self._quiet_until_s = snapshot.elapsed_s + QUIET_S
        self._print(plain_line(snapshot))
        self._print_verdict(snapshot)

    def _print_verdict(self, snapshot: RunSnapshot) -> None:
        """Prints the verdict where it differs from the last one."""
        found = snapshot.verdict
        if found is not None and found.kind not in ("too early", self._verdict_printed):
            self._verdict_printed = found.kind
            self._print(found.line)

    def _print(self, line: str) -> None:
        self.console.print(visible(line), markup=False, highlight=False, soft_wrap=True)


def plain_line(s: RunSnapshot) -> str:
    parts = [s.reached]
    if s.loss is not None:
        parts.append(f"loss {compact(s.loss)}")
    elif s.reward is not None:
        parts.append(f"reward {compact(s.reward)}")
    if s.validation:
        parts.append(f"validation {s.validation[-1].told()} (step {s.validation[-1].step})")
    if s.cut:
        parts.append(f"cut off {s.cut:.0%}")
    if s.staleness_now is not None:
        parts.append(f"staleness {s.staleness_now:.2f}/{s.staleness_bound}")
    if s.tokens_per_s is not None:
        parts.append(f"{s.tokens_per_s:,.0f} tokens/s")
    parts.append(f"elapsed {duration(s.elapsed_s)}")
    if s.eta_s is not None and s.step < s.max_steps:
        parts.append(f"left {duration(s.eta_s)}")
    return "  ".join(parts)


def draw(s: RunSnapshot) -> RenderableType:
    head = Table.grid(padding=(0, 2))
    left = f"{duration(s.eta_s)} left" if s.eta_s is not None else "time left unknown"
    bar = ProgressBar(total=max(s.max_steps, 1), completed=s.step, width=28, complete_style="green")
    head.add_row(Text(s.reached, "bold"), bar, Text(f"{duration(s.elapsed_s)} elapsed, {left}", LABEL))

    groups = Text("groups  ", LABEL)
    for i, (name, count) in enumerate(s.groups.items()):
        groups.append(f"{'   ' if i else ''}{name} ", LABEL).append(f"{count:,}", "default")
    blocks: list[RenderableType] = [Text(), head]
    if s.verdict is not None:
        blocks.append(Text(visible(s.verdict.line), STYLES[s.verdict.level]))
    blocks += [Text(), _figures(s)]
    if s.roles:
        blocks += [Text(), _roles(s)]
    if s.groups:
        blocks += [Text(), groups]
    return Group(*blocks)


def _figures(s: RunSnapshot) -> Table:
    accuracies = [each.accuracy for each in s.validation if each.accuracy is not None]
    validation = f"{s.validation[-1].told()}  {sparkline(accuracies[-24:])}".rstrip() if s.validation else "-"
    figures = {
        **({"loss": compact(s.loss)} if s.loss is not None else {"reward": "-" if s.reward is None else compact(s.reward)}),
        "validation": validation,
        "cut off": _number(s.cut, ".0%"),
        "staleness / bound": f"{_number(s.staleness_now, '.2f')} / {s.staleness_bound}",
        "tokens/s": _number(s.tokens_per_s, ",.0f"),
    }
    table = Table.grid(padding=(0, 3))
    table.add_row(*(Text(label, LABEL) for label in figures))
    table.add_row(*(Text(value, "bold") for value in figures.values()))
    return table


def _roles(s: RunSnapshot) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="ellipsis", no_wrap=True)
    for role in s.roles:
        state, reason = Text(role.state, _style(role.state)), Text(visible(role.reason), LABEL)
        table.add_row(Text(role.name), state, duration(role.since_s), reason)
    return table


def sparkline(values: list[float]) -> str:
    """Draws one bar a value, of accuracies 0 to 1 (the scale is fixed, so that the line does not exaggerate)."""
    return "".join(SPARKS[min(int(max(value, 0.0) * len(SPARKS)), len(SPARKS) - 1)] for value in values)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _style(state: str) -> str:
    if "error" in state.lower():
        return "bold red"
    return "yellow" if "wait" in state.lower() else "green"


def _stream_handlers() -> Iterator[logging.StreamHandler[Any]]:
    """Yields the stream handlers of all loggers, without handlers that write to files."""
    loggers = [
        logging.getLogger(),
        *(item for item in logging.Logger.manager.loggerDict.values() if isinstance(item, logging.Logger)),
    ]
    for logger in loggers:
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
                yield handler


class _View(Live):
    """The live block on a terminal, which survives a change of the window's size.

    `Live` goes up as many rows as it drew. A window that became narrower has folded them into more, and one row for each fold
    would stay behind; so the rows that the block has now are counted and cleared first."""

    def __init__(self, console: Console) -> None:
        super().__init__(console=console, auto_refresh=False, transient=True)
        self._drawn: list[int] = []
        """Cells of each line on the screen."""
        self._width = console.width

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Called by the console before the block is drawn, and before anything is printed above it."""
        clearing = list(self._clearing())
        drawn = super().process_renderables(renderables)
        lines = self.console.render_lines(self.get_renderable(), pad=False)[: self.console.height]
        self._drawn = [sum(segment.cell_length for segment in line) for line in lines]
        self._width = self.console.width
        return [*clearing, *drawn]

    def _clearing(self) -> Iterator[Control]:
        """Clears the folded rows and goes back to where `Live` believes the end of the block to be."""
        width, height = self.console.width, self.console.height
        if width >= self._width or not self._drawn:
            return
        rows = min(sum(max(1, -(-cells // width)) for cells in self._drawn), height)
        if rows > len(self._drawn):
            up = ((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2))
            down = [(ControlType.CURSOR_DOWN, len(self._drawn) - 1)] if len(self._drawn) > 1 else []
            yield Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2), *(up * (rows - 1)), *down)
