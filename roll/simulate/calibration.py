"""The costs of a run, read off what it left behind: `--trace RUN`.

A short run shows what one schedule has shown: rates at the concurrency that it had, times on a machine as busy as it was. What a
file does not say stays at its default, and `Costs.measured` says where each figure is from.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from roll.configs.problems import ConfigError, Problem
from roll.simulate.costs import MIB, Costs, Spread
from roll.simulate.figures import step_rows

Row = dict[str, Any]
MOST_VALUES = 4096
"""Of a quantity that is drawn from what was seen."""


def calibrated(run: Path, ranks: int) -> Costs:
    """`ranks`: of its trainer. Raises `ConfigError` if the folder is no run that has trained some steps."""
    try:
        rows, summary = step_rows(run), json.loads((run / "summary.json").read_text())
        groups = [row for row in _rows(run / "groups.jsonl") if row.get("tokens")]
        events = [event for file in sorted((run / "trace").glob("*.json.gz")) for event in _events(file)]
        if len(rows) < 3 or not groups:
            raise ValueError(f"it has trained {len(rows)} steps, and 3 say little enough")
        return _costs(rows, summary, groups, events, ranks)
    except (OSError, ValueError, LookupError, TypeError) as error:
        what = f"cannot be read as a run: {type(error).__name__}: {error}"
        raise ConfigError(
            [Problem("--trace", str(run), what, "the folder of a run that has trained at least 3 steps")]
        ) from error


def _costs(rows: Sequence[Row], summary: Row, groups: Sequence[Row], events: Sequence[Row], ranks: int) -> Costs:
    later = rows[1:]  # the first step warms up
    phases = _phases(events)
    size = max(len(row["rewards"]) for row in groups)
    tokens = [row["tokens"] / len(row["rewards"]) for row in groups]
    step_tokens = fmean(tokens) * size * len([row for row in groups if row["fate"] == "trained"]) / len(rows)
    passes = [seconds for stage in ("log_prob", "reference", "value") if (seconds := _mean(later, f"time/{stage}_s"))]
    trained_s = max(_mean(later, "time/train_s"), 1e-9)
    updates = summary["weight_updates"]
    sends = [event["dur"] / 1e6 for event in events if str(event["name"]).startswith("send version")]
    episodes = _episodes(events)
    found: dict[str, tuple[object, str]] = {
        "response_tokens": (_spread(tokens), "groups.jsonl: mean length of each group's responses"),
        "pass_rate": (_shares([row["rewards"] for row in groups]), "groups.jsonl: each group's rewards above the middle"),
        "train_s": (_mean(later, "time/advantage_s"), "metrics.jsonl: time/advantage_s"),
        "train_tokens_per_s": (
            step_tokens / trained_s / ranks,
            f"metrics.jsonl: time/train_s; each of {ranks} ranks has its part",
        ),
        "flip_s": (updates["pause_s_mean"], "summary.json: weight_updates"),
        "start_s": (summary["started_s"], "summary.json: started_s"),
    }
    if passes:
        found["score_tokens_per_s"] = (step_tokens / fmean(passes) / ranks, "metrics.jsonl: time/log_prob_s, reference, value")
    if sends and updates["count"]:
        megabytes = updates["bytes"] / updates["count"] / MIB
        found["weights_mb"] = (megabytes, "summary.json: weight_updates")
        found["weights_mb_per_s"] = (megabytes / max(median(sends), 1e-9), "trace: median time to send a version")
    judged = [seconds for event in events for seconds in event.get("args", {}).get("judged_s", ())]
    if calls := sorted(_calls(events)):  # those that waited for a place are no measure
        where = "trace: what judging a group takes besides its slowest sample, first decile"
        found["call_s"] = (calls[len(calls) // 10], where)
    if slow := judged or phases["reward"]:  # of a run of an earlier version
        where = "trace: each sample's reward" if judged else "trace: the slowest sample of each group"
        found["reward_s"] = (_spread(slow), where)
    if episodes["turns"]:
        found |= _of_episodes(episodes, fmean(tokens))
    if busy := [engine for engine in summary.get("engines") or [] if engine["busy_s"]]:
        found["tokens_per_s"] = _rate(busy, sum(episodes["generation_s"]) or size * sum(phases["rollout"]))
    values: dict[str, Any] = {name: value for name, (value, _) in found.items()}
    given = {each.name: "default" for each in fields(Costs) if each.name != "measured"}
    measured = given | {name: where for name, (_, where) in found.items()}
    return replace(Costs(), **values, measured=measured)


def _episodes(events: Sequence[Row]) -> dict[str, list[float]]:
    """What groups of episodes have noted, all together."""
    names = ("turns", "generation_s", "environment_s", "answer_tokens")
    return {name: [value for event in events for value in event.get("args", {}).get(name, ())] for name in names}


def _rate(engines: Sequence[Row], generating_s: float) -> tuple[object, str]:
    """Of an engine while it was busy, with the requests that ran together then (Little's law), at least one."""
    rate = fmean(engine["generated_tokens"] / engine["busy_s"] for engine in engines)
    together = max(1.0, generating_s / sum(engine["busy_s"] for engine in engines))
    return ((together, rate),), f"summary.json: engines, with about {together:.1f} requests that run"


def _of_episodes(episodes: Mapping[str, Sequence[float]], tokens: float) -> dict[str, tuple[object, str]]:
    """`tokens`: of an episode, the environment's among them. A reset is taken to be as long as a step."""
    turns, answers = episodes["turns"], episodes["answer_tokens"]
    calls = [spent / (count + 1) for spent, count in zip(episodes["environment_s"], turns, strict=True)]
    told = max(0.0, tokens - fmean(answers) * fmean(turns)) / max(fmean(turns) - 1, 1e-9)
    return {
        "response_tokens": (_spread(answers), "trace: each answer"),
        "turns": (_spread(turns), "trace: each episode"),
        "environment_s": (_spread(calls), "trace: mean over each episode"),
        "observation_tokens": (told, "groups.jsonl: what is not answered"),
    }


def _phases(events: Sequence[Row]) -> dict[str, list[float]]:
    """Seconds of each phase of each group that had it."""
    began: dict[tuple[int, str], float] = {}
    found: dict[str, list[float]] = {"rollout": [], "reward": []}
    for event in events:
        key = event.get("id", -1), event["name"]
        if event["ph"] == "b":
            began[key] = event["ts"]
        elif event["ph"] == "e" and event["name"] in found and key in began:
            found[event["name"]].append((event["ts"] - began.pop(key)) / 1e6)
    return found


def _calls(events: Sequence[Row]) -> Iterator[float]:
    """Seconds of the phase in which a group is judged, less what its slowest sample took."""
    began: dict[int, float] = {}
    spans: dict[int, float] = {}
    judged: dict[int, float] = {}
    for event in events:
        group = event.get("id", -1)
        if event["name"] == "reward" and event["ph"] == "b":
            began[group] = event["ts"]
        elif event["name"] == "reward" and event["ph"] == "e" and group in began:
            spans[group] = (event["ts"] - began.pop(group)) / 1e6
        if seconds := event.get("args", {}).get("judged_s"):
            judged[group] = max(seconds)
    yield from (max(0.0, spans[group] - seconds) for group, seconds in judged.items() if group in spans)


def _events(file: Path) -> Iterator[Row]:
    yield from json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]


def _rows(file: Path) -> Iterator[Row]:
    yield from (json.loads(line) for line in file.read_text().splitlines() if line.endswith("}"))


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return fmean(row.get(name, 0.0) for row in rows)


def _shares(rewards: Sequence[Sequence[float | None]]) -> Spread:
    """Of each group: of groups of one size those with equal rewards are more than if all samples were alike."""
    known = [of_group for group in rewards if (of_group := [reward for reward in group if reward is not None])]
    least, most = min(map(min, known)), max(map(max, known))
    if least == most:
        return Spread(1.0)
    return _spread([fmean(reward > (least + most) / 2 for reward in of_group) for of_group in known])


def _spread(values: Sequence[float]) -> Spread:
    stride = -(-len(values) // MOST_VALUES)
    return Spread(fmean(values), 0.0, tuple(values[::stride]))
