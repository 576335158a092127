"""Results of a validation: avg@n and pass@k of a model on a set of prompts with 95 % confidence intervals, and its figures as
metrics.jsonl, summary.json and their readers have them. Pure.

Rollouts of one prompt are alike, so an interval counts prompts, not rollouts: the variance is that of the prompts' own figures
(clustered standard errors: E. Miller, "Adding Error Bars to Evals", 2024, arXiv:2411.00640). It is Wilson's score interval (1927)
at the effective sample size p (1 - p) / variance, as surveys of clusters have it (C. Franco et al., J. Surv. Stat. Methodol. 7,
2019): within [0, 1], and not of width 0 where all prompts are solved, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, sqrt
from statistics import NormalDist, fmean, variance
from typing import NamedTuple

from roll.core.configs.plain import JsonMapping
from roll.core.configs.sizes import compact

ACCURACY, SCORE = "val_correct/all/mean", "val/score/mean"
ERRORS, ROLLOUTS = "val/errors", "val/rollouts"
CONFIDENCE = 0.95


class Validated(NamedTuple):
    step: int
    accuracy: float | None
    """None: too many rollouts could not be judged."""
    score: float | None = None
    """Mean of the judged rollouts."""
    errors: int = 0
    """Rollouts of all sets that failed or could not be judged."""
    rollouts: int = 0
    """Rollouts of all sets; 0: that is not known."""

    @classmethod
    def of_row(cls, row: JsonMapping) -> Validated | None:
        """Returns None for a row of metrics.jsonl that is of no validation."""
        if row.get(ACCURACY) is None and row.get(ERRORS) is None:
            return None
        errors, rollouts = int(row.get(ERRORS) or 0), int(row.get(ROLLOUTS) or 0)
        return cls(row["step"], row.get(ACCURACY), row.get(SCORE), errors, rollouts)

    def metrics(self) -> dict[str, float]:
        known = {ACCURACY: self.accuracy, SCORE: self.score}
        counts = {ERRORS: float(self.errors), ROLLOUTS: float(self.rollouts)}
        return counts | {name: value for name, value in known.items() if value is not None}

    @property
    def unjudged(self) -> str:
        """Number of rollouts that were not judged, in words; empty if all were."""
        of_all = f" of {self.rollouts:,}" if self.rollouts else ""
        return f"{self.errors:,}{of_all} not judged" if self.errors else ""

    def told(self) -> str:
        """Returns the accuracy, the mean score where it is another number, and the number of missing judgements."""
        score = "" if self.score is None or self.score == self.accuracy else f"score {compact(self.score)}"
        parts = ("–" if self.accuracy is None else f"{self.accuracy:.3f}", score, self.unjudged)
        return ", ".join(part for part in parts if part)


class Estimate(NamedTuple):
    value: float
    low: float
    """Lower end of the confidence interval."""
    high: float
    prompts: int
    """Number of prompts behind it."""


def figures(outcomes: Sequence[Sequence[bool]], n: int) -> dict[str, Estimate]:
    """avg@n, and pass@k for k = 2, 4, 8, ... and n, by name. `outcomes`: for each prompt, the success of each of its rollouts.
    Where some could not be judged a prompt has fewer than `n`; it counts as long as it has k."""
    found = {f"avg@{n}": avg(outcomes), **{f"pass@{k}": pass_at(outcomes, k) for k in numbers_of_attempts(n)}}
    return {name: estimate for name, estimate in found.items() if estimate is not None}


def numbers_of_attempts(n: int) -> list[int]:
    """2, 4, 8, ... below n, and n; pass@1 is the average."""
    return [k for k in (2**i for i in range(1, n.bit_length())) if k < n] + ([n] if n > 1 else [])


def avg(outcomes: Sequence[Sequence[bool]]) -> Estimate | None:
    """The mean over prompts of the share of rollouts that succeeded; None without a rollout."""
    judged = [prompt for prompt in outcomes if prompt]
    return estimate([fmean(prompt) for prompt in judged], fmean(map(len, judged))) if judged else None


def pass_at(outcomes: Sequence[Sequence[bool]], k: int) -> Estimate | None:
    """The mean over prompts of `pass_at_k`; None if no prompt has k rollouts."""
    judged = [prompt for prompt in outcomes if len(prompt) >= k]
    if not judged:
        return None
    return estimate([pass_at_k(len(prompt), sum(prompt), k) for prompt in judged], fmean(map(len, judged)) / k)


def pass_at_k(n: int, c: int, k: int) -> float:
    """The unbiased estimate, from c successes in n rollouts, of the chance that one of k succeeds: 1 - C(n-c, k) / C(n, k) (M.
    Chen et al., "Evaluating Large Language Models Trained on Code", 2021, arXiv:2107.03374, eq. 1)."""
    return 1.0 - comb(n - c, k) / comb(n, k)


def estimate(values: Sequence[float], draws: float) -> Estimate:
    """The mean of the prompts' figures, each in [0, 1], with its interval. `draws`: as how many independent draws a prompt counts
    at most; it counts as one at least."""
    prompts, mean = len(values), fmean(values)
    spread, of_prompts = mean * (1 - mean), variance(values) if len(values) > 1 else 0.0
    each = min(max(spread / of_prompts, 1.0), draws) if of_prompts else 1.0
    return Estimate(mean, *wilson(mean, prompts * each), prompts)


def wilson(share: float, n: float) -> tuple[float, float]:
    """Wilson's score interval of a share among n draws."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    centre, scale = share + z * z / (2 * n), 1 + z * z / n
    half = z * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low, high = (centre - half) / scale, (centre + half) / scale
    return max(0.0, min(low, share)), min(1.0, max(high, share))  # as it is but for rounding
