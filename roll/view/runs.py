"""The runs below some folders, by name, and comparisons of runs: differences of configurations, results and times. A name is
looked up among the found ones: none leads anywhere else."""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from threading import Lock
from typing import Any

from roll.core.configs.redact import visible
from roll.core.record.estimates import ACCURACY
from roll.reports.learning_curve import REWARD
from roll.reports.verdict import Curve
from roll.simulate.figures import frontier
from roll.view.journal import shown, text
from roll.view.metrics import Metrics, titles
from roll.view.run import RunReader, last_step

DEEPEST = 4
"""Depth of the search for runs below a given folder."""
MOST_RUNS = 1_000
MOST_NAMED = 10
MOST_OPEN = 8
"""Runs that are held in memory, with their read files; as many as can be compared."""
METRICS = "metrics.jsonl"
SIGNS = (METRICS, "summary.json", "groups.jsonl")


class Runs:
    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [folder.resolve() for folder in folders]
        self._open: OrderedDict[str, RunReader] = OrderedDict()
        self._known: dict[str, Path] = {}
        self._lock = Lock()

    def places(self) -> dict[str, Path]:
        """Returns the folder of each run, the newest first."""
        found: dict[str, Path] = {}
        for folder in self._folders:
            for path in _below(folder, DEEPEST):
                name = visible(path.name if path == folder else str(path.relative_to(folder)))
                while name in found:
                    name += "~"
                found[name] = path
                if len(found) == MOST_RUNS:
                    break
        return dict(sorted(found.items(), key=lambda one: -one[1].stat().st_mtime))

    def run(self, name: str) -> RunReader:
        """Raises `LookupError` if there is no such run."""
        with self._lock:
            place = self._known.get(name)
            if place is None or place.is_symlink() or not is_run(place):
                self._known = self.places()
                place = self._known.get(name)
            if place is None:
                self._open.pop(name, None)
                raise LookupError(f"no such run: {name}")
            run = self._open.pop(name, None)
            if run is None or run.folder != place:
                run = RunReader(place)
            self._open[name] = run
            while len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
            return run


def _below(folder: Path, deepest: int) -> Iterator[Path]:
    """Yields folders of runs, without following a link."""
    if is_run(folder):
        yield folder
        folder, deepest = folder / "explorers", 1
    if deepest <= 0 or not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."))
    for name in names:
        yield from _below(folder / name, deepest - 1)


def check_run(folder: Path) -> None:
    """Raises `ValueError` for a path that is no folder, and for a folder of runs, with their names."""
    if not folder.is_dir():
        raise ValueError("there is no such folder")
    if not is_run(folder) and (names := [visible(str(path)) for path in _below(folder, DEEPEST)]):
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        raise ValueError(f"this is a folder of runs; name one of them: {', '.join(names[:MOST_NAMED])}{more}")


def is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() and any((folder / name).is_file() for name in SIGNS)


MOST_COMPARED = 8
MOST_WEIGHED = 200
MOST_READ = 1 << 20
"""Most bytes of metrics."""
LAG = "staleness/mean"
MOST_KEYS = 20_000
"""Keys of one configuration."""
ABSENT = "–"


def compared(runs: Mapping[str, RunReader]) -> dict[str, Any]:
    """Raises `ValueError` unless there are two to eight."""
    if not 2 <= len(runs) <= MOST_COMPARED:
        raise ValueError(f"{len(runs)} runs: two to {MOST_COMPARED} can be compared")
    rows = [{"name": name, **reached(run)} for name, run in runs.items()]
    names = sorted({name for run in runs.values() for name in run.metrics.names()})
    return {
        "runs": rows,
        "differences": differences([run.config for run in runs.values()]),
        "names": names,
        "titles": titles(names),
    }


def weighed(places: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Returns seconds of a step against staleness, of the later half of each run's steps; `best`: no other beats it in both. Runs
    with long journals are left out: those of a sweep are short."""
    short = [(name, place / METRICS) for name, place in places.items() if _size(place / METRICS) <= MOST_READ]
    rows: list[dict[str, Any]] = []
    for name, file in short[:MOST_WEIGHED]:
        metrics = Metrics(file.parent)
        with suppress(OSError, ValueError):
            metrics.look()
        clock, (steps, lags) = metrics.clock(), metrics.curve(LAG)
        half = list(clock)[(len(clock) - 1) // 2 :]
        later = [lag for step, lag in zip(steps, lags, strict=True) if half and step > half[0]]
        if len(half) > 1 and later:
            seconds = (clock[half[-1]][0] - clock[half[0]][0]) / (len(half) - 1)
            rows.append({"name": name, "step_s": seconds, "lag": fmean(later), "best": False})
    for place in frontier([(row["step_s"], row["lag"]) for row in rows]):
        rows[place]["best"] = True
    return rows


def _size(file: Path) -> float:
    return file.stat().st_size if file.is_file() else math.inf


def reached(run: RunReader) -> dict[str, float | None]:
    """Returns the best accuracy and reward, and the time to the best."""
    clock = run.clock()
    seconds, tokens = list(clock.values())[-1] if clock else (0.0, 0.0)
    validation, reward = run.metrics.curve(ACCURACY), run.metrics.curve(REWARD)
    found: dict[str, float | None] = {"steps": last_step(run.metrics), "seconds": seconds, "tokens": tokens}
    found |= {"gained": None, "gained_per_s": None, "first": _at(validation, 0), "best": None, "best_s": None}
    found |= {"last": _at(validation, -1), "reward": _at(reward, -1)}
    if len(validation.values):
        best = max(range(len(validation.values)), key=validation.values.__getitem__)
        found |= {"best": validation.values[best], "best_s": time_of(clock, validation.steps[best])}
        found["gained"] = gained = validation.values[best] - validation.values[0]
        if found["best_s"]:
            found["gained_per_s"] = gained / found["best_s"]
    return found


def time_of(clock: Mapping[int, tuple[float, float]], step: int) -> float | None:
    """Returns the seconds from the beginning of the run to the end of a step."""
    return clock[step][0] if step in clock else 0.0 if step == 0 else None


def differences(configs: list[dict[str, object]]) -> list[list[str]]:
    """Returns `[key, value in each]` of the keys whose values are not all equal."""
    flat = [dict(flattened(config)) for config in configs]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    rows = ((key, [one.get(key, ABSENT) for one in flat]) for key in keys)
    return [[shown(key), *map(shown, values)] for key, values in rows if len(set(values)) > 1]


def flattened(config: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    waiting: list[tuple[str, object]] = [("", config)]
    seen = 0
    while waiting and seen < MOST_KEYS:
        seen += 1
        key, value = waiting.pop()
        if isinstance(value, Mapping) and value:
            waiting += [(f"{key}.{name}".lstrip("."), item) for name, item in reversed(list(value.items()))]
        else:
            yield key, text(value) if isinstance(value, str) else repr(value)[:2_000]


def metric_differences(first: Metrics, second: Metrics, step: int | None) -> Iterator[tuple[str, float | None, float | None]]:
    """Yields the value of each metric of either run at a step, or the last one before it; None: at the end."""
    for name in sorted({*first.names(), *second.names()}):
        yield name, _until(first.curve(name), step), _until(second.curve(name), step)


def _until(curve: Curve, step: int | None) -> float | None:
    known = [value for at, value in zip(*curve, strict=True) if step is None or at <= step]
    return known[-1] if known else None


def _at(curve: Curve, place: int) -> float | None:
    return curve.values[place] if len(curve.values) else None
