"""Staleness of a step's data: the age of its tokens, from the version spans they carry.

The lag of a token is the version of the weights it trained minus the version that sampled it. The lag of a sample is that of its
oldest token, so it bounds the lag of its other tokens; admission bounds this lag."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from roll.core.configs.plain import JsonMapping, JsonObject
from roll.core.data.sample import SampleGroup


class StalenessStats:
    """Lag figures of a step and of the whole run. `bound` is the largest lag admission allows now."""

    def __init__(self, bound: int) -> None:
        self.bound = self._largest_bound = bound
        self._samples: Counter[int] = Counter()
        self._tokens: Counter[int] = Counter()

    def add_step(self, trained_version: int, groups: Iterable[SampleGroup]) -> JsonObject:
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

    def summary(self) -> JsonObject:
        """`{bound, max, mean, token_mean, histogram: {lag: samples}}` over all steps. The bound of a resumed run is
        the largest that it has had."""
        return {"bound": self._largest_bound, **_figures(self._samples, self._tokens)}

    def state(self) -> JsonObject:
        """JSON-able, for a checkpoint."""
        return {"bound": self._largest_bound, "samples": _as_json(self._samples), "tokens": _as_json(self._tokens)}

    def restore(self, state: JsonMapping) -> None:
        self._largest_bound = max(self.bound, state["bound"])
        self._samples = Counter({int(lag): count for lag, count in state["samples"].items()})
        self._tokens = Counter({int(lag): count for lag, count in state["tokens"].items()})


def _figures(samples: Counter[int], tokens: Counter[int]) -> JsonObject:
    means = {"mean": _mean(samples), "token_mean": _mean(tokens)}
    return {"max": max(samples, default=0), **means, "histogram": _as_json(samples)}


def _mean(counts: Counter[int]) -> float:
    total = counts.total()
    return sum(lag * count for lag, count in counts.items()) / total if total else 0.0


def _as_json(counts: Counter[int]) -> dict[str, int]:
    """Keys as JSON has them: strings, in the order of the lags."""
    return {str(lag): counts[lag] for lag in sorted(counts)}
