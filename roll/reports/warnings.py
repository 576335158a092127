"""What every run warns of by the metrics of its steps: that they teach nothing, and that data is too far from the policy.

The distance shows in four ways: an engine samples from other weights than it says it has; a loss takes numerics out on long
responses; a correction leaves too few tokens; a target is set that no pipeline is shallow enough for.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from roll.algorithms.correction import ESS
from roll.algorithms.expected_left import LEAST, fix_of
from roll.algorithms.loss import LossSpec
from roll.algorithms.loss_metrics import LEFT, LENGTHS
from roll.configs.ppo import PPOConfig
from roll.record.callbacks import Callback
from roll.record.run_progress import RunProgress
from roll.reports.learning_curve import STALENESS_MAX
from roll.reports.table import Metrics, Row, Table

PATIENCE = 3
"""Steps in a row before a warning of what a single step may have by chance."""
NORM, MOST, LEAST_ADVANTAGE = "actor_train/grad_norm", "critic/advantages/max", "critic/advantages/min"
ESS_TOKEN, K3, ENGINES_K3 = "actor/train_infer_ess_token", "actor/train_infer_k3", "actor/engine_mismatch_k3"
MEAN_OF_ENGINE = "actor/engine_mismatch/"
LEAST_TOKENS = 0.8
"""With a smaller effective share of the tokens a correction is proposed."""

logger = logging.getLogger(__name__)


def table(config: PPOConfig, loss: LossSpec) -> Iterator[Row]:
    correction, tuning = config.train_infer_correction, config.staleness_tuning
    yield from LEARNING
    if config.mismatch_alarm is not None:
        yield mismatched_engine(config.mismatch_alarm)
    yield from vanishing_gradient(loss.pg_variant, fix_of(loss.pg_variant, loss.args, correction))
    yield mismatch_advice(config.async_generation_ratio, correction.is_weight.enabled, tuning.depth)
    if tuning.target_ess is not None and (tuning.learning_rate or tuning.depth):
        yield unreachable_ess(tuning.target_ess)


def _teaches_nothing(metric: str, holds: Callable[[float, Metrics], bool], text: str) -> Row:
    said = f"{PATIENCE} steps in a row had {text}"
    return Row(metric, lambda _, value, all_: holds(value, all_), lambda *_: said, patience=PATIENCE, kept=True)


LEARNING = (
    _teaches_nothing(
        MOST,
        lambda most, metrics: most == metrics.get(LEAST_ADVANTAGE) == 0,
        "no signal: all advantages are 0, as where all rewards of a group are equal (critic/score, samples.jsonl)",
    ),
    _teaches_nothing(NORM, lambda norm, _: norm == 0, "a gradient of norm 0: the weights do not change"),
    _teaches_nothing(
        NORM,
        lambda norm, _: not math.isfinite(norm),
        "a gradient that is not finite: such optimiser steps are left out, and change no weight (actor_train/skipped_steps)",
    ),
)


def mismatched_engine(most: float) -> Row:
    """An engine, and the trainer, give a token different log-probs under the same weights."""

    def sentence(name: str, nats: float, _: Metrics) -> str:
        return (
            f"the log-probs of actor_infer engine {name.removeprefix(MEAN_OF_ENGINE)} differ from the trainer's by {nats:.3g} "
            f"nats a token under the same weights (mismatch_alarm {most:g}): another dtype, or weights that are not what they "
            "should be"
        )

    return Row(f"{MEAN_OF_ENGINE}*", lambda _, nats, __: not nats <= most, sentence, said="always")  # NaN is above, too


def vanishing_gradient(variant: str, fix: str) -> Iterator[Row]:
    """Long responses, with A > 0 or with A < 0, keep little of the gradient, while shorter ones have twice as much, or there are
    none."""

    def holds(name: str, left: float, metrics: Metrics) -> bool:
        sign, _, longest = name.rpartition("_")
        if longest == "1k":
            return False
        shares = [value for each in LENGTHS if each != "1k" and (value := metrics.get(f"{sign}_{each}")) is not None]
        return bool(left == min(shares) < LEAST and 2 * left <= metrics.get(f"{sign}_1k", 1.0))

    def sentence(name: str, left: float, metrics: Metrics) -> str:
        sign, _, longest = name.removeprefix(f"{LEFT}/").rpartition("_")
        names, which = list(LENGTHS), "with A > 0" if sign == "good" else "with A < 0"
        shorter = LENGTHS[names[names.index(longest) - 1]]
        return (
            f"pg_variant {variant} leaves responses {which} of more than {shorter:,} tokens {left:.0%} of their gradient "
            f"({name}), so they are hardly learned from"
        )

    yield from (Row(f"{LEFT}/{sign}_*", holds, sentence, fix) for sign in ("good", "bad"))


def mismatch_advice(ratio: float, weighted: bool, bounded: bool) -> Row:
    """A distance between trained and sampling policy leaves too few tokens. `ratio`: how many batches rollouts may run ahead.
    `weighted`: tokens are weighted for the distance already. `bounded`: the depth follows the effective sample size already."""

    def sentence(_: str, left: float, metrics: Metrics) -> str:
        of_engines = metrics.get(ENGINES_K3)
        share = None if of_engines is None else min(1.0, of_engines / max(metrics[K3], 1e-12))
        said = f"importance weights leave {left:.0%} of the tokens ({ESS_TOKEN}), {PATIENCE} steps in a row"
        if ratio == 0 or (share is not None and share > 0.5):
            weight = "" if weighted else ", or train_infer_correction.is_weight: {enabled: true, weight_type: token}"
            found = "" if share is None else f" ({share:.0%}: {ENGINES_K3} of {K3})"
            return (
                f"{said}; most of that is there under the same weights{found}; proposal: one dtype for engine and trainer{weight}"
            )
        known = "how much is numerics is not known, for no token was fresh" if share is None else f"{share:.0%} of it is numerics"
        depth = "a larger staleness_tuning.target_ess" if bounded else "staleness_tuning.depth: true"
        fix = f"{depth}, or an async_generation_ratio below {ratio:g}"
        return f"{said}; it comes from older versions ({known}); proposal: {fix}"

    return Row(ESS_TOKEN, lambda _, left, __: left < LEAST_TOKENS, sentence, patience=PATIENCE)


def unreachable_ess(target: float) -> Row:
    """No pipeline is shallow enough for `target_ess`: what follows the effective sample size stays held back."""

    def holds(_: str, ess: float, metrics: Metrics) -> bool:
        return ess < target and metrics[STALENESS_MAX] == 0

    def sentence(_: str, ess: float, __: Metrics) -> str:
        fresh = f"though no sample is older than the weights (staleness_tuning.target_ess {target:g})"
        return f"{ESS} is {ess:.2f}, {fresh}, {PATIENCE} steps in a row"

    return Row(ESS, holds, sentence, "a target_ess below what such steps have", patience=PATIENCE)


class Warnings(Callback):
    def __init__(self, rows: Sequence[Row]) -> None:
        self._table = Table(rows)
        self.kept: list[str] = []
        """Those for summary.json."""

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        for said in self._table.judge(metrics):
            text = f"step {step}: {said.text}"
            logger.warning("%s", text)
            self.kept += [text] if self._table.rows[said.row].kept else []

    def on_summary(self, summary: MutableMapping[str, Any], progress: RunProgress) -> None:
        summary["warnings"] += self.kept
