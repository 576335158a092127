"""`roll train ... -m key=a,b other=range(0,3)`: a run of each combination, each in a process of its own, and a table of them.

The runs lie beside each other in `<output_dir>/<exp_name>/`, each named by its values, so `roll ui` of that folder compares them.
Every combination is loaded and checked before the first run starts.
"""

from __future__ import annotations

import itertools
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from roll.cli.options import INTERRUPTED, table
from roll.core.configs.problems import ConfigError, Problem
from roll.core.configs.redact import visible
from roll.core.configs.sizes import duration
from roll.view.journal import number
from roll.view.run import RunReader
from roll.view.runs import is_run, reached

LONGEST_NAME = 120
"""Characters of a run's folder name, at most; file systems take 255 bytes."""
MOST_RUNS = 1000


@dataclass(frozen=True, slots=True)
class Combination:
    values: Mapping[str, str]
    """Values of the swept keys."""
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the run's folder: the last part of each key, and its value."""
        parts = (f"{key.rpartition('.')[2]}={value}" for key, value in self.values.items())
        return re.sub(r"[^\w.=,+-]+", "_", ",".join(parts))[:LONGEST_NAME].strip(".")


def combinations(overrides: Sequence[str]) -> list[Combination]:
    """Returns all combinations, the last key varying fastest. Raises `ConfigError` if nothing is swept, or too much."""
    choices = [[*_choices(override)] for override in overrides]
    swept = [override.lstrip("+").partition("=")[0] for override, found in zip(overrides, choices, strict=True) if len(found) > 1]
    count = 1
    for found in choices:
        count *= len(found)
    if count < 2 or count > MOST_RUNS:
        message = "sweeps nothing" if count < 2 else f"makes {count:,} runs, more than {MOST_RUNS:,}"
        raise ConfigError([Problem("--multirun", " ".join(overrides), message, "e.g. -m async_generation_ratio=0,1,2")])
    made = []
    for chosen in itertools.product(*choices):
        values = {key: value for one in chosen for key, _, value in [one.lstrip("+").partition("=")] if key in swept}
        made.append(Combination(values, tuple(chosen)))
    if len({each.name for each in made}) < len(made):
        made = [Combination({"run": str(number)} | dict(each.values), each.overrides) for number, each in enumerate(made)]
    return made


def _choices(override: str) -> Iterator[str]:
    """Yields the override with each value of its sweep, or as it stands."""
    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException:  # what Hydra cannot read is text, which `compose` quotes
        yield override
        return
    if not parsed.is_sweep_override():
        yield override
        return
    try:
        for value in parsed.sweep_string_iterator():
            yield f"{override.partition('=')[0]}={value}"
    except HydraException as error:
        raise ConfigError([Problem("--multirun", override, " ".join(str(error).split()), "write the values: key=a,b")]) from None


@dataclass(slots=True)
class Sweep:
    """Runs commands, some side by side, until all have ended or one was interrupted."""

    jobs: int
    folder: Path
    codes: dict[str, int] = field(default_factory=dict)
    """Exit code of each run that has ended, by name."""
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _stops: bool = False

    def run(self, commands: Mapping[str, Sequence[str]]) -> None:
        with self._passing_on(), ThreadPoolExecutor(self.jobs) as threads:
            for ended in [threads.submit(self._one, name, commands, beside=self.jobs > 1) for name in commands]:
                ended.result()

    def _one(self, name: str, commands: Mapping[str, Sequence[str]], beside: bool) -> None:
        if self._stops:
            return
        log, place = self.folder / f"{name}.log", f"run {[*commands].index(name) + 1} of {len(commands)}"
        print(visible(f"{place}: {name}" + (f" (its output: {log})" if beside else "")), flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        with log.open("wb") if beside else nullcontext() as output:
            process = subprocess.Popen(commands[name], stdout=output, stderr=None if output is None else subprocess.STDOUT)
            self._running.append(process)
            if self._stops:  # the signal came while it started
                process.terminate()
            self.codes[name] = process.wait()
        self._running.remove(process)
        self._stops = self._stops or self.codes[name] in (INTERRUPTED, -signal.SIGINT, -signal.SIGTERM)

    @contextmanager
    def _passing_on(self) -> Iterator[None]:
        """Passes signals on to the runs, which handle them; no further run starts. The terminal sends Ctrl-C to all by itself."""

        def stop(number: int, _: FrameType | None) -> None:
            self._stops = True
            for process in list(self._running) if number == signal.SIGTERM else ():
                process.send_signal(number)

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def results(combinations: Sequence[Combination], folder: Path) -> list[list[str]]:
    """Returns one line per run, the first one the head."""
    keys = list(combinations[0].values)
    rows = [[*(key.rpartition(".")[2] for key in keys), "status", "steps", "validation", "best", "reward", "time"]]
    for each in combinations:
        run = folder / each.name
        found = reached(RunReader(run)) if is_run(run) else {}
        status = str(RunReader(run).summary.get("status", "–")) if found else "not run"
        shown = (found.get("first"), found.get("last"), found.get("best"), found.get("reward"))
        first, last, best, reward = ("–" if (value := number(each)) is None else f"{value:.4g}" for each in shown)
        time = duration(number(found["seconds"]) or 0.0) if found else "–"
        validation = "–" if first == last == "–" else f"{first} → {last}"
        rows.append([*each.values.values(), status, str(found.get("steps", "–")), validation, best, reward, time])
    return rows


def multirun(made: Sequence[Combination], folder: Path, jobs: int, command: Callable[[Combination], list[str]]) -> int:
    """Runs all, and prints their table. Returns 0, the code of an interruption, or the worst code of a run."""
    sweep = Sweep(jobs, folder)
    sweep.run({each.name: command(each) for each in made})
    print("\n" + "\n".join(map(visible, table(results(made, folder)))))
    print(f"compare them: roll ui {visible(shlex.quote(str(folder)))}")
    if INTERRUPTED in sweep.codes.values() or len(sweep.codes) < len(made):
        return INTERRUPTED
    return max(abs(code) for code in sweep.codes.values())
