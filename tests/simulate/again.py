"""Runs one schedule of faults again, alone. `held` writes that of a broken promise, and prints this command.

    python tests/simulate/again.py build/broken_schedule/schedule.json [--break [SECONDS]]

The schedule is the same run, event by event. `--break` stops in Python's debugger when the first promise is broken, or at a
second of virtual time, as the faults and the page count them. The debugger adds nothing to the event loop, so all happens as it
does without."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import promises
from fault_schedules import Fault, Schedule
from faulty import FaultySimulation
from party import PartySchedule, broken_promises_of

from roll.simulate.virtual_loop import VirtualLoop

AT_A_BROKEN_PROMISE = -1.0


def read(text: str) -> Schedule | PartySchedule:
    row = json.loads(text)
    row["faults"] = tuple(Fault(**fault) for fault in row["faults"])
    if "explorers" not in row:
        return Schedule(**row)
    return PartySchedule(**row | {"run": Schedule(**row["run"] | {"faults": ()})})


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 if all promises are kept, 1 if not."""
    parser = argparse.ArgumentParser(prog="again.py", description="Runs one schedule of faults again.", allow_abbrev=False)
    parser.add_argument("schedule", type=Path, metavar="FILE")
    help_ = "a debugger at this second, or when a promise is broken"
    parser.add_argument(
        "--break", dest="stop", type=float, nargs="?", const=AT_A_BROKEN_PROMISE, default=math.inf, metavar="SECONDS", help=help_
    )
    options = parser.parse_args(arguments)
    schedule = read(options.schedule.read_text())
    judge: Any = promises.broken_promises if isinstance(schedule, Schedule) else broken_promises_of
    with tempfile.TemporaryDirectory() as folder, debugged(options.stop) as stopped:
        broken = judge(schedule, Path(folder) / "runs")
    print("\n".join(["promises are broken", *broken] if broken else ["all promises are kept"]))
    if options.stop != math.inf and not stopped:
        print("the debugger was not reached: nothing is broken before the end, or the end comes before this second")
    return int(bool(broken))


def debugger(at_s: float, in_play: Sequence[object], loop: VirtualLoop) -> None:
    """What can be looked at: the runs, and who waits for what, by `asyncio.all_tasks(loop)`."""
    with redirect_stdout(sys.__stdout__):  # a simulated run prints nothing
        breakpoint()


@contextmanager
def debugged(second: float) -> Iterator[list[object]]:
    """Yields what has stopped the run: at most one thing."""
    runs: list[object] = []
    loops: list[VirtualLoop] = []
    """Of the attempts so far: each begins at 0."""
    stopped: list[object] = []
    run_of, init, tell = FaultySimulation.run, VirtualLoop.__init__, promises.show

    def stop(why: object) -> None:
        stopped.append(why)
        debugger(sum(each.virtual_s for each in loops), [*runs], loops[-1])

    def made(simulation: FaultySimulation, *given: object) -> object:
        runs.append(run := run_of(simulation, *given))
        return run

    def begun(loop: VirtualLoop) -> None:
        init(loop)
        loops.append(loop)
        runs.clear()
        select = loop._selector.select

        def selected(timeout: float | None) -> list[object]:
            found = select(timeout)
            if second >= 0 and not stopped and sum(each.virtual_s for each in loops) >= second:
                stop(second)
            return found

        loop._selector.select = selected

    def shown(run: object, row: str, what: str, lasts_s: float = 0.0) -> None:
        tell(run, row, what, lasts_s)
        if row == promises.BROKEN and second == AT_A_BROKEN_PROMISE and not stopped:
            stop(what)

    with (
        mock.patch.object(FaultySimulation, "run", made),
        mock.patch.object(VirtualLoop, "__init__", begun),
        mock.patch("promises.show", shown),
    ):
        yield stopped


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
