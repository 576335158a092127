"""All runs of some folders at one look: a row for each, the running ones first."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roll.core.record.estimates import ACCURACY
from roll.view.journal import mapping, number, shown, whole
from roll.view.run import LATEST, RunReader, changed_at
from roll.view.runs import Runs, reached

LIVE = ("running", "silent")
"""States of runs whose row may change though no file does."""
MOST_WARNINGS = 20


class Overview:
    def __init__(self, folders: Sequence[Path]) -> None:
        self._runs = Runs(folders)
        self._readers: dict[Path, RunReader] = {}
        """Readers of runs that are not over: nothing is read twice."""
        self._rows: dict[Path, tuple[float, dict[str, Any]]] = {}
        """Time of the run's last write, and its row."""

    def rows(self) -> list[dict[str, Any]]:
        places = self._runs.places()
        for gone in self._rows.keys() - {*places.values()}:
            del self._rows[gone]
            self._readers.pop(gone, None)
        rows = [self._row(name, place) for name, place in places.items()]
        return sorted(rows, key=lambda row: (row["state"] not in LIVE, row["written_s_ago"]))

    def _row(self, name: str, place: Path) -> dict[str, Any]:
        changed = max(changed_at(place / each) for each in LATEST)
        before, row = self._rows.get(place, (None, {}))
        if before != changed or row["state"] in LIVE:
            reader = self._readers.setdefault(place, RunReader(place))
            row = row_of(name, reader)
            self._rows[place] = changed, row
            if row["state"] not in LIVE:
                del self._readers[place]
        return row | {"written_s_ago": max(0.0, time.time() - changed)}


def row_of(name: str, run: RunReader) -> dict[str, Any]:
    status, summary = run.status(), run.summary
    warnings = [event["text"] for event in status["events"] if event["level"] in ("error", "warning")]
    kept = ("state", "reason", "step", "max_steps", "left_s", "bound", "staleness", "idle", "reward", "validation")
    return {
        "name": name,
        "folder": shown(str(run.folder)),
        **{key: status[key] for key in kept},
        "verdict": status["verdict"] and {key: status["verdict"][key] for key in ("kind", "text", "level")},
        "best": _best(run, summary),
        "explorers": [member for member in status["members"] if member["role"] != "trainer"],
        "warnings": warnings[:MOST_WARNINGS],
        "warned": len(warnings),
    }


def _best(run: RunReader, summary: dict[str, object]) -> dict[str, Any] | None:
    """Returns the best checkpoint, where the run keeps it; else the best validation. None: there is neither."""
    best = mapping(summary.get("best"))
    if best and (value := number(best.get("value"))) is not None:
        return {"metric": shown(best.get("metric")), "value": value, "step": whole(best.get("step"))}
    value = reached(run)["best"]
    steps, values = run.metrics.curve(ACCURACY)
    step = next((step for step, each in zip(steps, values, strict=True) if each == value), None)
    return None if value is None else {"metric": ACCURACY, "value": value, "step": step}
