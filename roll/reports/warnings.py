"""Warnings of every run by the metrics of its steps: they teach nothing, or data is too far from the policy.

The distance shows in four ways: an engine samples from other weights than it says it has; a loss takes numerics out on long
responses; a correction leaves too few tokens; a target is set that no pipeline is shallow enough for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import isfinite
from typing import Any

from roll.core.algorithms.correction import ESS
from roll.core.algorithms.loss import LossSpec
from roll.core.algorithms.loss_metrics import LEFT, LENGTHS
from roll.core.configs.ppo import PPOConfig
from roll.core.record.callbacks import Callback, MetricsRow, Summary
from roll.core.record.run_progress import RunProgress
from roll.plan.expected_left import LEAST, fix_of
from roll.reports.learning_curve import STALENESS_MAX
from roll.reports.table import Row, Table

PATIENCE = 3
"""Steps in a row before a warning about a value that a single step may have by chance."""
NORM, ESS_TOKEN = "actor_train/grad_norm", "actor/train_infer_ess_token"
K3, ENGINES_K3 = "actor/train_infer_k3", "actor/engine_mismatch_k3"
LEAST_TOKENS = 0.8
"""A smaller effective share of the tokens leads to the advice of a correction."""
LASTING: Any = {"patience": PATIENCE, "kept": True}

logger = logging.getLogger(__name__)

LEARNING = (
    Row(
        "critic/advantages/max",
        lambda most, metrics: most == metrics.get("critic/advantages/min") == 0,
        f"{PATIENCE} steps in a row had no signal: all advantages are 0, as where all rewards of a group are equal "
        "(critic/score, samples.jsonl)",
        **LASTING,
    ),
    Row(
        NORM,
        lambda norm, _: norm == 0,
        f"{PATIENCE} steps in a row had a gradient of norm 0: the weights do not change",
        **LASTING,
    ),
    Row(
        NORM,
        lambda norm, _: not isfinite(norm),
        f"{PATIENCE} steps in a row had a gradient that is not finite: such optimiser steps are left out, and change no weight "
        "(actor_train/skipped_steps)",
        **LASTING,
    ),
)


def table(config: PPOConfig, loss: LossSpec) -> Iterator[Row]:
    correction, tuning = config.train_infer_correction, config.staleness_tuning
    yield from LEARNING
    if config.mismatch_alarm is not None:
        yield mismatched_engine(config.mismatch_alarm)
    fix = fix_of(loss.pg_variant, loss.args, correction)
    yield from (vanishing_gradient(loss.pg_variant, sign, fix) for sign in ("good", "bad"))
    yield mismatch_advice(config.async_generation_ratio, correction.is_weight.enabled, tuning.depth)
    if tuning.target_ess is not None and (tuning.learning_rate or tuning.depth):
        yield unreachable_ess(tuning.target_ess)


def mismatched_engine(most: float) -> Row:
    """Warns that engine and trainer give a token different log-probs under the same weights."""

    def sentence(name: str, nats: float, _: MetricsRow) -> str:
        return (
            f"the log-probs of actor_infer engine {name.rpartition('/')[2]} differ from the trainer's by {nats:.3g} nats a token "
            f"under the same weights (mismatch_alarm {most:g}): another dtype, or weights that are not what they should be"
        )

    return Row("actor/engine_mismatch/*", lambda nats, _: not nats <= most, sentence, said="always")  # NaN is above, too


def vanishing_gradient(variant: str, sign: str, fix: str) -> Row:
    """Warns that long responses, with A > 0 (`good`) or A < 0 (`bad`), keep little of the gradient, and shorter ones twice as
    much, if there are any."""
    shorter = {f"{LEFT}/{sign}_{name}": LENGTHS[before] for before, name in pairwise(LENGTHS)}

    def condition(left: float, metrics: MetricsRow) -> bool:
        least = min(metrics[name] for name in shorter if name in metrics)
        return bool(left == least < LEAST and 2 * left <= metrics.get(f"{LEFT}/{sign}_1k", 1.0))

    def sentence(name: str, left: float, _: MetricsRow) -> str:
        which = f"responses with A {'>' if sign == 'good' else '<'} 0 of more than {shorter[name]:,} tokens"
        return f"pg_variant {variant} leaves {which} {left:.0%} of their gradient ({name}), so they are hardly learned from"

    return Row([*shorter], condition, sentence, fix)


def mismatch_advice(ratio: float, weighted: bool, bounded: bool) -> Row:
    """Warns that a distance between trained and sampling policy leaves too few tokens. `ratio`: batches that rollouts may run
    ahead. `weighted`: tokens are weighted for the distance already. `bounded`: the depth follows the effective sample size
    already."""

    def sentence(_: str, left: float, metrics: MetricsRow) -> str:
        of_engines = metrics.get(ENGINES_K3)
        share = None if of_engines is None else min(1.0, of_engines / max(metrics[K3], 1e-12))
        said = f"importance weights leave {left:.0%} of the tokens ({ESS_TOKEN}), {PATIENCE} steps in a row; "
        if ratio == 0 or (share is not None and share > 0.5):
            weight = "" if weighted else ", or train_infer_correction.is_weight: {enabled: true, weight_type: token}"
            found = "" if share is None else f" ({share:.0%}: {ENGINES_K3} of {K3})"
            return (
                f"{said}most of that is there under the same weights{found}; proposal: one dtype for engine and trainer{weight}"
            )
        known = "how much is numerics is not known, for no token was fresh" if share is None else f"{share:.0%} of it is numerics"
        depth = "a larger staleness_tuning.target_ess" if bounded else "staleness_tuning.depth: true"
        fix = f"{depth}, or an async_generation_ratio below {ratio:g}"
        return f"{said}it comes from older versions ({known}); proposal: {fix}"

    return Row(ESS_TOKEN, lambda left, _: left < LEAST_TOKENS, sentence, patience=PATIENCE)


def unreachable_ess(target: float) -> Row:
    """Warns that no pipeline is shallow enough for `target_ess`: the parts that follow the effective sample size stay held
    back."""
    fresh = f"though no sample is older than the weights (staleness_tuning.target_ess {target:g}), {PATIENCE} steps in a row"

    def condition(ess: float, metrics: MetricsRow) -> bool:
        return ess < target and metrics[STALENESS_MAX] == 0

    return Row(ESS, condition, f"{{name}} is {{value:.2f}}, {fresh}", "a target_ess below what such steps have", PATIENCE)


class Warnings(Callback):
    def __init__(self, rows: Sequence[Row], found: Sequence[str] = ()) -> None:
        """`found`: warnings from before the run began."""
        self._table = Table(rows)
        self.kept = [*found]
        """Warnings for summary.json."""

    def add(self, line: str) -> None:
        logger.warning("%s", line)
        self.kept.append(line)

    def on_step(self, step: int, metrics: MetricsRow) -> None:
        for place, _, text in self._table.judge(metrics):
            (self.add if self._table.rows[place].kept else logger.warning)(f"step {step}: {text}")

    def on_summary(self, summary: Summary, progress: RunProgress) -> None:
        summary["warnings"] = [*self.kept]
