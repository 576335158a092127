"""How far from the policy the data of a step was: how old its tokens were, by the version spans they carry; whether an engine
samples from the weights that it says it has, by its log-probs beside the trainer's; and whether the loss takes their difference
out on long responses.

The lag of a token is the version of the weights it trained minus the version that sampled it. The lag of a sample is that of its
oldest token, so it bounds the lag of its other tokens, and is what admission bounds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from roll.algorithms.correction import ESS
from roll.algorithms.expected_left import LEAST, fix_of
from roll.algorithms.loss import LossSpec
from roll.algorithms.loss_metrics import LEFT, LENGTHS
from roll.configs.ppo import PPOConfig
from roll.data.sample import SampleGroup

MEAN_OF_ENGINE = "actor/engine_mismatch/"
LEAST_TOKENS, PATIENCE = 0.8, 3
"""With a smaller effective share of the tokens, so many steps in a row, a correction is proposed."""


class StalenessStats:
    """Lag figures of a step and of the whole run. `bound` is the largest lag admission allows now."""

    def __init__(self, bound: int) -> None:
        self.bound = self._largest_bound = bound
        self._samples: Counter[int] = Counter()
        self._tokens: Counter[int] = Counter()

    def add_step(self, trained_version: int, groups: Iterable[SampleGroup]) -> dict[str, Any]:
        """The figures of one step, which continued from the weights of `trained_version`; the mean of each domain, too, where its
        groups are of several.

        A sample without a token counts as old as its group, in samples only. Raises `ValueError`, adding nothing, for a
        token of a version that the trainer does not have yet."""
        samples: Counter[int] = Counter()
        tokens: Counter[int] = Counter()
        by_domain: defaultdict[str, Counter[int]] = defaultdict(Counter)
        for group in groups:
            for sample in group.samples:
                lag = trained_version - (sample.oldest_version if sample.versions else group.start_version)
                samples[lag] += 1
                by_domain[group.prompt.domain][lag] += 1
                for span in sample.versions:
                    tokens[trained_version - span.version] += span.stop - span.start
        newest = min([*samples, *tokens], default=0)
        if newest < 0:
            raise ValueError(f"training from version {trained_version} got tokens of version {trained_version - newest}")
        self._samples += samples
        self._tokens += tokens
        lags = {f"{domain}/mean": _mean(by_domain[domain]) for domain in sorted(by_domain) if len(by_domain) > 1}
        return {f"staleness/{name}": value for name, value in (_figures(samples, tokens) | lags).items()}

    def summary(self) -> dict[str, Any]:
        """`{bound, max, mean, token_mean, histogram: {lag: samples}}` over all steps. The bound of a resumed run is
        the largest that it has had."""
        return {"bound": self._largest_bound, **_figures(self._samples, self._tokens)}

    def state(self) -> dict[str, Any]:
        """JSON-able, for a checkpoint."""
        return {"bound": self._largest_bound, "samples": _as_json(self._samples), "tokens": _as_json(self._tokens)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._largest_bound = max(self.bound, state["bound"])
        self._samples = Counter({int(lag): count for lag, count in state["samples"].items()})
        self._tokens = Counter({int(lag): count for lag, count in state["tokens"].items()})


def _figures(samples: Counter[int], tokens: Counter[int]) -> dict[str, Any]:
    means = {"mean": _mean(samples), "token_mean": _mean(tokens)}
    return {"max": max(samples, default=0), **means, "histogram": _as_json(samples)}


def _mean(counts: Counter[int]) -> float:
    total = counts.total()
    return sum(lag * count for lag, count in counts.items()) / total if total else 0.0


def _as_json(counts: Counter[int]) -> dict[str, int]:
    """Keys as JSON has them: strings, in the order of the lags."""
    return {str(lag): counts[lag] for lag in sorted(counts)}


class OffPolicyWarnings:
    """Warnings of a step's distance from the policy that sampled it."""

    def __init__(self, config: PPOConfig, loss: LossSpec) -> None:
        correction, tuning = config.train_infer_correction, config.staleness_tuning
        self._alarm = config.mismatch_alarm
        self._fading = Fading(loss.pg_variant, fix_of(loss.pg_variant, loss.args, correction))
        self._correcting = Correcting(config.async_generation_ratio, correction.is_weight.enabled, tuning.depth)
        self._unreached = Unreached(tuning.target_ess if tuning.learning_rate or tuning.depth else None)

    def sentences(self, metrics: Mapping[str, float], fresh: bool) -> Iterator[str]:
        """After a step. `fresh`: all its samples were made with the weights that it started from."""
        alarm = self._alarm
        for name, nats in metrics.items():
            if alarm is not None and name.startswith(MEAN_OF_ENGINE) and not nats <= alarm:  # NaN is above, too
                yield (
                    f"the log-probs of actor_infer engine {name.removeprefix(MEAN_OF_ENGINE)} differ from the trainer's by "
                    f"{nats:.3g} nats a token under the same weights (mismatch_alarm {alarm:g}): another dtype, or weights "
                    "that are not what they should be"
                )
        yield from self._fading.sentences(metrics)
        yield from filter(None, (self._correcting.proposal(metrics), self._unreached.sentence(metrics, fresh)))


class Correcting:
    """Proposes once what to do about a distance between trained and sampling policy that leaves too few tokens, by where it comes
    from."""

    def __init__(self, ratio: float, weighted: bool, bounded: bool) -> None:
        """`ratio`: how many batches rollouts may run ahead. `weighted`: tokens are weighted for the distance already. `bounded`:
        the depth follows the effective sample size already."""
        self._ratio, self._weighted, self._bounded = ratio, weighted, bounded
        self._steps, self._said = 0, False

    def proposal(self, metrics: Mapping[str, float]) -> str | None:
        """After a step."""
        left = metrics.get("actor/train_infer_ess_token", 1.0)
        self._steps = self._steps + 1 if left < LEAST_TOKENS else 0
        if self._steps < PATIENCE or self._said:
            return None
        self._said = True
        of_engines = metrics.get("actor/engine_mismatch_k3")
        share = None if of_engines is None else min(1.0, of_engines / max(metrics["actor/train_infer_k3"], 1e-12))
        said = f"importance weights leave {left:.0%} of the tokens (actor/train_infer_ess_token), {PATIENCE} steps in a row"
        if self._ratio == 0 or (share is not None and share > 0.5):
            weight = "" if self._weighted else ", or train_infer_correction.is_weight: {enabled: true, weight_type: token}"
            found = "" if share is None else f" ({share:.0%}: actor/engine_mismatch_k3 of actor/train_infer_k3)"
            return (
                f"{said}; most of that is there under the same weights{found}; proposal: one dtype for engine and trainer{weight}"
            )
        known = "how much is numerics is not known, for no token was fresh" if share is None else f"{share:.0%} of it is numerics"
        fix = "a larger staleness_tuning.target_ess" if self._bounded else "staleness_tuning.depth: true"
        fix += f", or an async_generation_ratio below {self._ratio:g}"
        return f"{said}; it comes from older versions ({known}); proposal: {fix}"


class Unreached:
    """Says once that no pipeline is shallow enough for `target_ess`: what follows the effective sample size stays held back."""

    def __init__(self, target: float | None) -> None:
        """None: nothing follows it."""
        self._target, self._steps = target, 0

    def sentence(self, metrics: Mapping[str, float], fresh: bool) -> str | None:
        ess = metrics.get(ESS, 1.0)
        if self._target is None or ess >= self._target or not fresh:
            self._steps = 0
            return None
        self._steps += 1
        if self._steps < PATIENCE:
            return None
        said = f"{ESS} is {ess:.2f}, though no sample is older than the weights (staleness_tuning.target_ess {self._target:g})"
        self._target = None
        return f"{said}, {PATIENCE} steps in a row; fix: a target_ess below what such steps have"


class Fading:
    """Says once, for responses with A > 0 and for those with A < 0, that long ones keep little of the gradient."""

    def __init__(self, variant: str, fix: str) -> None:
        self._variant, self._fix = variant, fix
        self._said = set[str]()

    def sentences(self, metrics: Mapping[str, float]) -> Iterator[str]:
        """Of a step. A length is too little where shorter responses have twice as much, or there are none."""
        for sign in {"good", "bad"} - self._said:
            left = {name: value for name in LENGTHS if (value := metrics.get(f"{LEFT}/{sign}_{name}")) is not None}
            short = left.pop("1k", 1.0)
            name, least = min(left.items(), key=lambda each: each[1], default=("", 1.0))
            if least < LEAST and 2 * least <= short:
                self._said.add(sign)
                which = "with A > 0" if sign == "good" else "with A < 0"
                yield (
                    f"pg_variant {self._variant} leaves responses {which} of more than {_shorter(name)} tokens {least:.0%} of "
                    f"their gradient ({LEFT}/{sign}_{name}), so they are hardly learned from; fix: {self._fix}"
                )


def _shorter(name: str) -> str:
    names = list(LENGTHS)
    return f"{LENGTHS[names[names.index(name) - 1]]:,}"
