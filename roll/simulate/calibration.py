"""The costs of a run, read off its files: `--trace RUN`.

A short run shows what one schedule has shown: rates at the concurrency that it had, times on a machine as busy as it was. Figures
that change while a policy learns are those of the later half of its steps, as predictions are. A figure that no file has stays at
its default, and `Costs.measured` says where each figure is from.
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
from typing import Any, TypeAlias

from roll.core.configs.derived import derive
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import ConfigError, Problem
from roll.core.configs.worker import TEACHERS
from roll.simulate.costs import MIB, Costs, Spread
from roll.simulate.figures import step_rows

Row = dict[str, Any]
Span = tuple[float, float]
Spans = dict[str, dict[int, Span]]
"""By phase and group."""
Line: TypeAlias = tuple[float, float] | None
"""Seconds of a token: a fixed part, and a part for each running request."""
FEWEST, LEAST_CORRELATION = 16, 0.3
"""Episodes, and the correlation of their seconds with the number of requests, that a line through them needs."""
FORWARD = 3
"""A forward pass costs two operations for each weight and token, forward and backward together six."""
IN_A_ROW = 4
"""Median by first decile of the gaps between two beginnings; if they came at random it would be 6.6."""
MOST_VALUES = 4096
"""Most values kept for a quantity that is drawn from observed ones."""


def calibrated(run: Path, config: PPOConfig) -> Costs:
    """`config`: that of the run. Raises `ConfigError` if the folder is no run that has trained some steps."""
    ranks, places = len(config.actor_train.devices), derive(config).requests_per_engine
    try:
        rows, summary = step_rows(run), json.loads((run / "summary.json").read_text())
        rows = [row for row in rows if row["step"] > config.warm_steps]
        groups = [row for row in _rows(run / "groups.jsonl") if row.get("tokens") and row["step"] > config.warm_steps]
        events = [event for file in sorted((run / "trace").glob("*.json.gz")) for event in _events(file)]
        if len(rows) < 3 or not groups:
            raise ValueError(f"it has trained {len(rows)} steps, and 3 say little enough")
        costs = _costs(rows, summary, groups, events, ranks, places)
        return _overlapped(costs) if overlaps(config) and "device_turns" not in summary else costs
    except (OSError, ValueError, LookupError, TypeError) as error:
        what = f"cannot be read as a run: {type(error).__name__}: {error}"
        raise ConfigError(
            [Problem("--trace", str(run), what, "the folder of a run that has trained at least 3 steps")]
        ) from error


def overlaps(config: PPOConfig) -> bool:
    """Returns True if two roles may compute on one device at the same time (`auto`: the memory decides)."""
    shared = any(config.on_devices_of("actor_infer", at_once) for at_once in (False, True))
    return shared and (config.sharing == "overlap" or (config.sharing == "auto" and config.async_generation_ratio > 0))


def _overlapped(costs: Costs) -> Costs:
    """Returns costs without a slowdown by overlap: the seconds measured beside the other role include it."""
    where = "sharing: overlap: all seconds of the run are beside the other role"
    return replace(costs, overlap_speed=1.0, measured={**costs.measured, "overlap_speed": where})


def _costs(rows: Sequence[Row], summary: Row, groups: Sequence[Row], events: Sequence[Row], ranks: int, places: int) -> Costs:
    later = rows[max(1, len(rows) // 2) :]
    lately = [row for row in groups if row["step"] >= later[0]["step"]]
    named = {row["group_id"] for row in lately}
    episodes = _episodes([event for event in events if event.get("id") in named])
    size, spans = max(len(row["rewards"]) for row in groups), _spans(events)
    tokens = [row["tokens"] / len(row["rewards"]) for row in lately]
    trained = sum(len(row["rewards"]) for row in lately if row["status"] == "trained") / len(later)
    found: dict[str, tuple[Any, str]] = {
        "response_tokens": (_spread(tokens), "groups.jsonl: mean length of each group's responses"),
        "pass_rate": (_shares([row["rewards"] for row in lately]), "groups.jsonl: each group's rewards above the middle"),
        "start_s": (summary["started_s"], "summary.json: started_s"),
        **_training(later, trained * fmean(tokens) / ranks, ranks),
        **_weights(summary["weight_updates"], events),
        **(_of_episodes(episodes, fmean(tokens)) if episodes["turns"] else {}),
    }
    if calls := _calls(events, spans["reward"]):  # those that waited for a place are no measure
        where = "trace: what judging a group takes besides its slowest sample, first decile"
        found["call_s"] = (calls[len(calls) // 10], where)
    if driver := message_s(spans["rollout"].values(), size):
        found["message_s"] = (driver, "trace: median time between two requests that begin in a row")
    if judged := [seconds for event in events for seconds in event.get("args", {}).get("judged_s", ())]:
        found["reward_s"] = (_spread(judged), "trace: each sample's reward")
    if busy := [engine for engine in summary.get("engines") or [] if engine["busy_s"]]:
        rollouts = spans["rollout"]
        generating_s = sum(_episodes(events)["generation_s"]) or size * sum(end - begin for begin, end in rollouts.values())
        most = min(float(places), size * _most_at_once(rollouts.values()) / len(busy))
        found["tokens_per_s"] = _rates(busy, generating_s, most, _by_concurrency(events, rollouts, len(busy)))
    if turns := summary.get("device_turns"):
        call_s = found.get("call_s", (0.0,))[0]
        found["turn_s"] = (max(0.0, turns["mean_s"] - call_s), "summary.json: device_turns, less a call")
    values: dict[str, Any] = {name: value for name, (value, _) in found.items()}
    given = {each.name: "default" for each in fields(Costs) if each.name != "measured"}
    measured = given | {name: where for name, (_, where) in found.items()}
    return replace(Costs(), **values, measured=measured)


def _training(rows: Sequence[Row], tokens: float, ranks: int) -> dict[str, tuple[Any, str]]:
    """`tokens`: of a step, for each rank, as they are drawn: from all groups, of which those that are dropped may be shorter."""
    rate = tokens / max(_mean(rows, "time/train_s"), 1e-9)
    scored = (FORWARD * rate, "no pass in the run: a third of training's time")
    teachers = {name for row in rows for name in row if name.startswith(f"time/{TEACHERS}")}
    scoring = ("time/log_prob_s", "time/reference_s", "time/value_s", *sorted(teachers))
    if passes := [seconds for stage in scoring if (seconds := _mean(rows, stage))]:
        scored = (tokens / fmean(passes), "metrics.jsonl: time/log_prob_s, reference, value, teachers")
    return {
        "train_s": (_mean(rows, "time/advantage_s"), "metrics.jsonl: time/advantage_s"),
        "train_tokens_per_s": (rate, f"metrics.jsonl: time/train_s; each of {ranks} ranks has its part"),
        "score_tokens_per_s": scored,
    }


def _weights(updates: Mapping[str, float], events: Sequence[Row]) -> dict[str, tuple[Any, str]]:
    """Derives the costs of weight updates. Sending during the making of a version costs nothing more: training's seconds include
    it."""
    pause_s = updates["pause_s_mean"]
    found: dict[str, tuple[Any, str]] = {"flip_s": (pause_s, "summary.json: weight_updates")}
    made, sent, flipped = (_spans_of(events, what) for what in ("version", "send version", "flip to version"))
    sends = [end - max(begin, made.get(version, (begin,))[0]) for version, (begin, end) in sent.items()]
    flips = sorted(end - begin for begin, end in flipped.values())
    if sends and flips and updates["count"]:
        megabytes = updates["bytes"] / updates["count"] / MIB
        load_s = max(1e-9, median(sends)) + max(0.0, flips[len(flips) // 10] - pause_s)
        where = "trace: what sending takes once a version is made, and a call to flip"
        found |= {"weights_mb": (megabytes, "summary.json: weight_updates"), "weights_mb_per_s": (megabytes / load_s, where)}
    return found


def _spans_of(events: Sequence[Row], what: str) -> dict[str, Span]:
    """Returns by version the span from the first to the last event of this name."""
    found: dict[str, Span] = {}
    for event in events:
        if match := re.match(rf"{what} (\d+)\b", str(event["name"])):
            begin, end = event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6
            earlier = found.get(match[1], (begin, end))
            found[match[1]] = min(begin, earlier[0]), max(end, earlier[1])
    return found


def _episodes(events: Sequence[Row]) -> dict[str, list[float]]:
    """Returns the notes of all groups of episodes, joined by name."""
    names = ("turns", "generation_s", "environment_s", "answer_tokens")
    return {name: [value for event in events for value in event.get("args", {}).get(name, ())] for name in names}


def _most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    moments = sorted((moment, step) for span in spans for moment, step in zip(span, (1, -1), strict=True))
    return max(accumulate(step for _, step in moments), default=0)


def _rates(engines: Sequence[Row], generating_s: float, most: float, by_concurrency: Line) -> tuple[object, str]:
    """Returns an engine's rates while it was busy, at the mean number of requests that ran together (Little's law): at least one,
    and no more than there were, or could be (a request is under way longer than its engine works on it); and at fewer, where they
    are known."""
    rate = fmean(engine["generated_tokens"] / engine["busy_s"] for engine in engines)
    together = max(1.0, min(most, generating_s / sum(engine["busy_s"] for engine in engines)))
    where = f"summary.json: engines, with about {together:.1f} requests that run"
    if by_concurrency is None:
        return ((together, rate),), where
    anyway, each = by_concurrency
    counts = [*(float(1 << power) for power in range(12) if 1 << power < together), together]
    return tuple((count, count / (anyway + each * count)) for count in counts), "trace: a line through the seconds of answers"


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
    """Returns when each group was rolled out, and judged, in seconds."""
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
    """Returns the seconds of judging each group, less those of its slowest sample; ascending."""
    slowest = {event["id"]: max(noted) for event in events if (noted := event.get("args", {}).get("judged_s"))}
    return sorted(max(0.0, end - begin - slowest[group]) for group, (begin, end) in judging.items() if group in slowest)


def message_s(rollouts: Iterable[Span], size: int) -> float:
    """Returns the driver's seconds for a request, where groups begin in a row, one once the one before is under way; else 0."""
    begins = sorted(begin for begin, _ in rollouts)
    gaps = sorted(after - before for before, after in pairwise(begins))
    return gaps[len(gaps) // 2] / size if gaps and gaps[len(gaps) // 2] < IN_A_ROW * gaps[len(gaps) // 10] else 0.0


def _by_concurrency(events: Sequence[Row], playing: Mapping[int, Span], engines: int) -> Line:
    """Fits a line to the episodes: seconds of an answer's token by the requests that run on its engine. Returns its fixed part
    and the part for each request, or None where the line says nothing."""
    noted = {event["id"]: event["args"] for event in events if event.get("args", {}).get("generation_s")}
    episodes = [each for group, args in noted.items() if group in playing for each in _played(playing[group][0], args)]
    if len(episodes) < FEWEST:
        return None
    ends = sorted(end for begin, took, asked, _ in episodes for end in ((begin, asked / took), (begin + took, -asked / took)))
    times, running = [at for at, _ in ends], [0.0, *accumulate(change for _, change in ends)]
    until = [0.0, *accumulate(number * (after - at) for number, (at, after) in zip(running[1:], pairwise(times), strict=False))]

    def requests_s(at: float) -> float:
        """Returns the seconds of all requests until then, added up."""
        place = bisect_right(times, at)
        return until[place - 1] + running[place] * (at - times[place - 1])

    together = [(requests_s(begin + took) - requests_s(begin)) / took / engines for begin, took, _, _ in episodes]
    seconds = [asked / tokens for _, _, asked, tokens in episodes]
    if max(together) < 2 * min(together) or len({*seconds}) == 1 or correlation(together, seconds) < LEAST_CORRELATION:
        return None
    anyway = max(linear_regression(together, seconds).intercept, min(seconds) / 2)
    weights = [tokens for *_, tokens in episodes]
    return anyway, (fmean(seconds, weights) - anyway) / fmean(together, weights)


def _played(begin: float, args: Mapping[str, Sequence[Any]]) -> Iterator[tuple[float, float, float, int]]:
    """Yields for each episode of a group its beginning, its seconds, those spent waiting for answers, and the tokens of the
    answers."""
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
    """Returns each group's share of right samples. Of the groups drawn from these, as many are all right, and all wrong, as in
    the run: some drawn from mixed ones are so by chance, too, and fewer are drawn from the others. With U mixed ones, and their
    chances r and w to be all right and all wrong, (1 - r - w) n - U r are kept of n that are all right, so that each kind has the
    share that it had."""
    known = [of_group for group in rewards if (of_group := [reward for reward in group if reward is not None])]
    least, most = min(map(min, known)), max(map(max, known))
    if least == most:
        return Spread(1.0)
    shares = [fmean(reward > (least + most) / 2 for reward in of_group) for of_group in known]
    mixed, size = [share for share in shares if 0 < share < 1], max(map(len, known))
    right, wrong = (sum(share**size for share in of) / max(len(of), 1) for of in (mixed, [1 - share for share in mixed]))

    def kept(value: float, chance: float) -> list[float]:
        equal = shares.count(value)
        return [value] * round(max(0.0, equal * (1 - right - wrong) - len(mixed) * chance))

    return _spread([*mixed, *kept(1.0, right), *kept(0.0, wrong)])


def _spread(values: Sequence[float]) -> Spread:
    stride = -(-len(values) // MOST_VALUES)
    return Spread(fmean(values), 0.0, tuple(values[::stride]))
