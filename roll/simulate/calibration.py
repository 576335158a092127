"""The costs of a run, read off what it left behind: `--trace RUN`.

A short run shows what one schedule has shown: rates at the concurrency that it had, times on a machine as busy as it was. What a
file does not say stays at its default, and `Costs.measured` says where each figure is from.
"""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import accumulate, islice, pairwise
from pathlib import Path
from statistics import correlation, fmean, linear_regression, median
from typing import Any

from roll.configs.problems import ConfigError, Problem
from roll.engines.weight_updates import AHEAD
from roll.simulate.costs import MIB, Costs, Spread
from roll.simulate.figures import step_rows

Row = dict[str, Any]
Span = tuple[float, float]
Spans = dict[str, dict[int, Span]]
"""By phase and group."""
FEWEST, LEAST_CORRELATION = 16, 0.3
"""Episodes, and what their seconds have to do with the number of requests, for a line through them."""
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
    spans = _spans(events)
    size = max(len(row["rewards"]) for row in groups)
    tokens = [row["tokens"] / len(row["rewards"]) for row in groups]
    step_tokens = fmean(tokens) * size * len([row for row in groups if row["fate"] == "trained"]) / len(rows)
    passes = [seconds for stage in ("log_prob", "reference", "value") if (seconds := _mean(later, f"time/{stage}_s"))]
    trained_s = max(_mean(later, "time/train_s"), 1e-9)
    updates = summary["weight_updates"]
    sends = _sends(events)
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
    if calls := _calls(events, spans["reward"]):  # those that waited for a place are no measure
        where = "trace: what judging a group takes besides its slowest sample, first decile"
        found["call_s"] = (calls[len(calls) // 10], where)
    if judged:
        found["reward_s"] = (_spread(judged), "trace: each sample's reward")
    if episodes["turns"]:
        found |= _of_episodes(episodes, fmean(tokens))
    if busy := [engine for engine in summary.get("engines") or [] if engine["busy_s"]]:
        generating_s = sum(episodes["generation_s"]) or size * sum(end - begin for begin, end in spans["rollout"].values())
        most = size * _most_at_once(spans["rollout"].values()) / len(busy)
        found["tokens_per_s"] = _rates(busy, generating_s, most, _by_concurrency(events, spans["rollout"], len(busy)))
    values: dict[str, Any] = {name: value for name, (value, _) in found.items()}
    given = {each.name: "default" for each in fields(Costs) if each.name != "measured"}
    measured = given | {name: where for name, (_, where) in found.items()}
    return replace(Costs(), **values, measured=measured)


def _sends(events: Sequence[Row]) -> list[float]:
    """Seconds of each load; what was sent while the version was made counts with what was left."""
    found: list[float] = []
    ahead: dict[str, float] = {}
    for event in events:
        if match := re.fullmatch(rf"send version (\d+)( {AHEAD})?", str(event["name"])):
            version, seconds = match[1], event["dur"] / 1e6
            if match[2]:
                ahead[version] = seconds
            else:
                found.append(seconds + ahead.pop(version, 0.0))
    return found


def _episodes(events: Sequence[Row]) -> dict[str, list[float]]:
    """What groups of episodes have noted, all together."""
    names = ("turns", "generation_s", "environment_s", "answer_tokens")
    return {name: [value for event in events for value in event.get("args", {}).get(name, ())] for name in names}


def _most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    moments = sorted((moment, step) for span in spans for moment, step in zip(span, (1, -1), strict=True))
    return max(accumulate(step for _, step in moments), default=0)


def _rates(
    engines: Sequence[Row], generating_s: float, most: float, by_concurrency: tuple[float, float] | None
) -> tuple[object, str]:
    """Of an engine while it was busy, with the requests that ran together then (Little's law), at least one, and no more than
    there were (a request is under way longer than its engine works on it); and with fewer, where that is known."""
    rate = fmean(engine["generated_tokens"] / engine["busy_s"] for engine in engines)
    together = max(1.0, min(most, generating_s / sum(engine["busy_s"] for engine in engines)))
    where = f"summary.json: engines, with about {together:.1f} requests that run"
    if by_concurrency is None:
        return ((together, rate),), where
    anyway, each = by_concurrency
    whole = rate * (anyway + each * together) / together
    counts = [*(float(1 << power) for power in range(12) if 1 << power < together), together]
    return tuple((count, whole * count / (anyway + each * count)) for count in counts), f"{where}; trace: with fewer"


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


def _spans(events: Sequence[Row]) -> Spans:
    """When each group was rolled out, and judged, in seconds."""
    began: dict[tuple[int, str], float] = {}
    found: Spans = {"rollout": {}, "reward": {}}
    for event in events:
        group, name = event.get("id", -1), event["name"]
        if event["ph"] == "b":
            began[group, name] = event["ts"] / 1e6
        elif event["ph"] == "e" and name in found and (group, name) in began:
            found[name][group] = began.pop((group, name)), event["ts"] / 1e6
    return found


def _calls(events: Sequence[Row], judging: Mapping[int, Span]) -> list[float]:
    """Seconds in which a group is judged, less what its slowest sample took; ascending."""
    slowest = {event["id"]: max(noted) for event in events if (noted := event.get("args", {}).get("judged_s"))}
    return sorted(max(0.0, end - begin - slowest[group]) for group, (begin, end) in judging.items() if group in slowest)


def _by_concurrency(events: Sequence[Row], playing: Mapping[int, Span], engines: int) -> tuple[float, float] | None:
    """Seconds of a token of an answer: those that it takes anyway, and those for each request that runs on its engine, a line
    through what the episodes had. None where the line says nothing."""
    noted = {event["id"]: event["args"] for event in events if event.get("args", {}).get("generation_s")}
    episodes = [each for group, args in noted.items() if group in playing for each in _played(playing[group][0], args)]
    if len(episodes) < FEWEST:
        return None
    ends = sorted(end for begin, took, asked, _ in episodes for end in ((begin, asked / took), (begin + took, -asked / took)))
    times, running = [at for at, _ in ends], [0.0, *accumulate(change for _, change in ends)]
    until = [0.0, *accumulate(number * (after - at) for number, (at, after) in zip(running[1:], pairwise(times), strict=False))]

    def requests_s(at: float) -> float:
        """Of all requests until then, together."""
        place = bisect_right(times, at)
        return until[place - 1] + running[place] * (at - times[place - 1])

    together = [(requests_s(begin + took) - requests_s(begin)) / took / engines for begin, took, _, _ in episodes]
    seconds = [asked / tokens for _, _, asked, tokens in episodes]
    if max(together) < 2 * min(together) or len({*seconds}) == 1 or correlation(together, seconds) < LEAST_CORRELATION:
        return None
    each, anyway = linear_regression(together, seconds)
    return max(anyway, min(seconds) / 2), each


def _played(begin: float, args: Mapping[str, Sequence[Any]]) -> Iterator[tuple[float, float, float, int]]:
    """Of each episode of a group: when it began, its seconds, those in which it waited for answers, and their tokens."""
    answers = iter(args["answer_tokens"])
    for turns, asked, outside in zip(args["turns"], args["generation_s"], args["environment_s"], strict=True):
        tokens = sum(islice(answers, turns))
        if asked > 0 and tokens:
            yield begin, asked + outside, asked, tokens


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
