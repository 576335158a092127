"""Costs of a simulated run: a table that a user writes, or that is read off a run (`calibration.py`)."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

import yaml

from roll.core.configs.problems import ConfigError, Problem, did_you_mean

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of a positive quantity: lognormal by mean and coefficient of variation, or drawn from `values`."""

    mean: float
    cv: float = 0.0
    values: tuple[float, ...] = ()

    def draw(self, seed: int) -> float:
        """Returns the draw of a seed; for a lognormal: mean · exp(s z - s²/2) with s² = ln(1 + cv²) and z standard normal."""
        if self.values:
            return self.values[random.Random(seed).randrange(len(self.values))]
        if not self.cv:
            return self.mean
        variance = math.log1p(self.cv**2)
        return self.mean * math.exp(math.sqrt(variance) * random.Random(seed).gauss(0, 1) - variance / 2)

    @classmethod
    def of(cls, key: str, given: object) -> Spread:
        """Reads a number, {mean, cv}, or a list of observed values. Raises `ConfigError`."""
        if isinstance(given, Sequence) and not isinstance(given, str) and given and all(map(_is_amount, given)):
            return cls(sum(given) / len(given), 0.0, tuple(map(float, given)))
        if isinstance(given, Mapping) and {"mean"} <= given.keys() <= {"mean", "cv"} and all(map(_is_amount, given.values())):
            return cls(float(given["mean"]), float(given.get("cv", 0.0)))
        if _is_amount(given):
            return cls(float(given))  # type: ignore[arg-type]
        raise ConfigError([Problem(key, given, "is no amount", "a number from 0, {mean: 1.5, cv: 0.8}, or a list of values")])


Rates: TypeAlias = tuple[tuple[float, float], ...]
"""(requests that run, tokens per second of the engine), ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds, tokens and MB; a rate of 0 is one that takes no time."""

    tokens_per_s: Rates = ((1, 50.0), (32, 1200.0))
    """Rate of one engine, all requests together, by the number that run: interpolated between entries, constant beyond the
    last."""
    request_s: float = 0.0
    """From an engine's taking of a request to its first token."""
    response_tokens: Spread = Spread(256.0, 0.5)
    """Length of an answer; an episode has one in each turn."""
    prompt_tokens: float = 0.0
    """Counted where a trainer computes; their time on an engine is in `request_s`."""
    turns: Spread = Spread(4.0)
    """Turns of an episode; `max_steps` cuts it short."""
    environment_s: Spread = Spread(0.0)
    """Seconds of an environment's step or reset."""
    observation_tokens: float = 0.0
    """Tokens between two answers of an episode that is one sample."""
    reward_s: Spread = Spread(0.0)
    """Seconds to judge one sample."""
    pass_rate: Spread = Spread(0.5)
    """Share of right samples in a group, drawn for each group: group filters see it."""
    call_s: float = 0.0
    """Seconds of a call to an engine, an environment or a judge, or one that has a role sleep or wake, besides its work: both
    ways, and the driver's. A trainer's other calls, and those that bring weights, are in their seconds."""
    message_s: float = 0.0
    """The driver's seconds for a message to a worker or from one: it handles one after the other."""
    train_s: float = 0.0
    """Seconds of a training step, besides its tokens."""
    train_tokens_per_s: float = 0.0
    """Rate of one rank that trains, forward and backward."""
    score_s: float = 0.0
    """Seconds of a pass that scores (log_prob, reference, value), besides its tokens."""
    score_tokens_per_s: float = 0.0
    """Rate of one rank that scores."""
    weights_mb: float = 0.0
    weights_mb_per_s: float = 0.0
    """Rate to each engine; engines take a version side by side."""
    gather_s: float = 0.0
    """Seconds to gather a version on the trainer's ranks, before its first byte is sent: a rank makes one bucket."""
    flip_s: float = 0.0
    """Pause of an engine that takes a received version."""
    turn_s: float = 0.0
    """Seconds to sleep, and to wake, where roles take turns on devices."""
    overlap_speed: float = 0.5
    """Share of its speed that each of two roles has while both compute on one device (`sharing: overlap`)."""
    start_s: float = 0.0
    """Seconds to start a worker."""
    snapshot_s: float = 0.0
    """Seconds of a rank to take the snapshot of a checkpoint."""
    write_s: float = 0.0
    """Seconds of a rank to write it, beside the training."""
    validation_prompts: float = 64.0
    """Prompts of each validation set without `val_batch_size`: prompt files are not read."""
    measured: Mapping[str, str] = field(default_factory=dict)
    """Source of each calibrated figure, in words."""

    def decode_rate(self, running: int) -> float:
        """Returns the tokens per second of each running request."""
        rates = self.tokens_per_s
        below = (0.0, 0.0)
        for count, rate in rates:
            if running <= count:
                share = (running - below[0]) / (count - below[0])
                return (below[1] + share * (rate - below[1])) / running
            below = (count, rate)
        return below[1] / running

    @property
    def pull_s(self) -> float:
        return self.weights_mb / self.weights_mb_per_s if self.weights_mb_per_s else 0.0


_SPREADS = ("response_tokens", "reward_s", "turns", "environment_s", "pass_rate")


def read_costs(text: str, where: str, costs: Costs) -> Costs:
    """Returns `costs` with a YAML table over them. Raises `ConfigError`."""
    try:
        given: Any = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfigError([Problem("--costs", where, " ".join(str(error).split()), "a YAML mapping")]) from error
    if not isinstance(given, dict):
        raise ConfigError([Problem("--costs", where, "is not a mapping of figures", "e.g. response_tokens: {mean: 800, cv: 1}")])
    return with_figures(costs, given)


def with_figures(costs: Costs, given: Mapping[str, Any]) -> Costs:
    """Returns `costs` with the given figures in their place. Raises `ConfigError`."""
    known = {each.name for each in fields(Costs)} - {"measured"}
    found: dict[str, Any] = {each.name: getattr(costs, each.name) for each in fields(Costs)}
    found["measured"] = {name: where for name, where in costs.measured.items() if name not in given}
    for name, value in given.items():
        key = f"costs.{name}"
        if name not in known:
            raise ConfigError([Problem(key, value, "unknown figure", did_you_mean(str(name), known, f"one of {sorted(known)}"))])
        if name == "tokens_per_s":
            found[name] = _rates(key, value)
        elif name in _SPREADS:
            found[name] = Spread.of(key, value)
        elif not _is_amount(value):
            raise ConfigError([Problem(key, value, "is no amount", "a number from 0")])
        else:
            found[name] = float(value)
    if (rate := found["pass_rate"]).cv or max(rate.mean, *rate.values, 0.0) > 1:
        raise ConfigError(
            [Problem("costs.pass_rate", given["pass_rate"], "is no share", "a number from 0 to 1, or a list of them")]
        )
    if not 0 < found["overlap_speed"] <= 1:
        fix = "0.5, half of the device for each, or another share up to 1"
        raise ConfigError([Problem("costs.overlap_speed", given["overlap_speed"], "is no share above 0", fix)])
    return Costs(**found)


def _rates(key: str, value: object) -> Rates:
    if _is_amount(value) and value:
        return ((1.0, float(value)),)  # type: ignore[arg-type]
    rows = value.items() if isinstance(value, Mapping) else ()
    rates = tuple(sorted((float(n), float(rate)) for n, rate in rows if _is_amount(n) and _is_amount(rate) and n >= 1 and rate))
    if not rates or len(rates) != len(rows):
        fix = "{1: 60, 16: 700, 64: 1900}: requests that run, tokens per second of the engine"
        raise ConfigError([Problem(key, value, "is no table of rates above 0", fix)])
    return rates


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
