"""Figures of a run, real or simulated, from its metrics.jsonl: by step, and at steady state. Pure but for reading."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from roll.core.data.sample import LOGPROBS, TOKENS

IDLE = "idle_share/"
TOKEN_BYTES = array(TOKENS).itemsize + array(LOGPROBS).itemsize
"""Bytes of a token in the driver: its id and its log-prob."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of some steps together."""

    steps: int
    step_s: float
    """From the end of a step to the end of the next."""
    samples_per_s: float
    idle: dict[str, float]
    """Role -> share of the time without work."""
    staleness: float
    """Mean lag of the samples, in versions."""
    staleness_max: float
    waiting: float
    """Share of the time that the trainer waited for groups."""
    buffered: float
    """Groups that were ready when a step was done."""
    buffer_mb: float
    """Their tokens in the driver's memory."""

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def step_rows(run: Path) -> list[dict[str, Any]]:
    """Returns the rows of trained steps. Raises `OSError`, `ValueError`."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines() if line.endswith("}")]
    return [row for row in rows if "time/step_s" in row]


def figures(rows: Sequence[Mapping[str, Any]], samples: int, group_tokens: float) -> Figures:
    """Returns the figures of the steps after the first of `rows`, which marks their beginning. `samples`: of a step.
    `group_tokens`: of the responses of a group."""
    first, later = rows[0], rows[1:]
    seconds = [one["time/elapsed_s"] - before["time/elapsed_s"] for before, one in zip(rows, later, strict=False)]
    whole = max(sum(seconds), 1e-9)
    roles = [name.removeprefix(IDLE) for name in first if name.startswith(IDLE)]

    def over_time(name: str) -> float:
        return float(sum(row.get(name, 1.0) * spent for row, spent in zip(later, seconds, strict=True)) / whole)

    buffered = fmean(row["scheduler/buffered_groups"] for row in later)
    return Figures(
        steps=len(later),
        step_s=whole / len(later),
        samples_per_s=samples * len(later) / whole,
        idle={role: over_time(IDLE + role) for role in roles},
        staleness=fmean(row["staleness/mean"] for row in later),
        staleness_max=max(row["staleness/max"] for row in later),
        waiting=sum(row["time/wait_for_batch_s"] for row in later) / whole,
        buffered=buffered,
        buffer_mb=buffered * group_tokens * TOKEN_BYTES / 1e6,
    )


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """Returns the places of the points, (step time, staleness), that no other beats in both; the fastest first."""
    best: list[int] = []
    for place in sorted(range(len(points)), key=points.__getitem__):
        if not best or points[place][1] < points[best[-1]][1]:
            best.append(place)
    return best


def steady(rows: Sequence[Mapping[str, Any]], samples: int, group_tokens: float) -> Figures:
    """Returns the figures of the later half of a run."""
    return figures(rows[(len(rows) - 1) // 2 :], samples, group_tokens)
