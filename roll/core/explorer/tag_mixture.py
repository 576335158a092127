"""Chooses the next tag to play: by weight, or also by the measured pass rates. Pure.

Whoever is owed most is next: each tag is owed its share of every group, and pays one when it is served. So at every moment each
has had its share; and shares may change from step to step, and earlier debts are neither lost nor paid twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from roll.core.configs.agentic import PassRateMixtureConfig
from roll.core.configs.plain import JsonMapping, JsonObject
from roll.core.data.pass_rates import Visits, rate, share
from roll.core.data.sample import Sample

DIGITS = 9
"""Debts that differ by less are equal, and the first tag is next, so rounding errors do not decide."""


class TagMixture:
    """By weights alone."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = dict(weights)
        self._owed = dict.fromkeys(self._weights, 0.0)

    def next(self) -> str:
        for tag, part in self.shares().items():
            self._owed[tag] += part
        tag = max(self._owed, key=lambda tag: round(self._owed[tag], DIGITS))
        self._owed[tag] -= 1
        return tag

    def shares(self) -> dict[str, float]:
        counted = {tag: weight * self._learnable(tag) for tag, weight in self._weights.items()}
        total = sum(counted.values())
        return {tag: value / total for tag, value in counted.items()}

    def _learnable(self, tag: str) -> float:
        return 1.0

    def visited(self, tag: str, samples: Sequence[Sample]) -> None:
        """Records the result of a group of the tag."""

    def settle(self) -> None:
        """Counts the new visits from now on."""

    def metrics(self) -> dict[str, float]:
        return {}

    def state(self) -> JsonObject:
        """Returns, as plain JSON, the state that does not follow from the numbers of served groups."""
        return {}

    def restore(self, served: Mapping[str, int], state: JsonMapping) -> None:
        """Goes on from a `state()`."""
        total = sum(served.values())
        self._owed = {tag: part * total - served[tag] for tag, part in self.shares().items()}


class MeasuredMixture(TagMixture):
    """A tag counts as its weight times `share` of its pass rate (`pass_rates`), that of its last groups; one without a
    success that is known counts as its weight."""

    def __init__(self, weights: Mapping[str, float], config: PassRateMixtureConfig) -> None:
        super().__init__(weights)
        self._config = config
        self._visits: dict[str, Visits] = {}
        self._since: list[tuple[str, int, int]] = []
        """(tag, passed, episodes) since the last `settle`."""

    def _learnable(self, tag: str) -> float:
        visits = self._visits.get(tag)
        return share(rate(visits), self._config.least) if visits else 1.0

    def visited(self, tag: str, samples: Sequence[Sample]) -> None:
        told = [each.trajectory.success for each in samples if each.begins_rollout and each.trajectory is not None]
        known = [success for success in told if success is not None]
        if known:
            self._since.append((tag, sum(known), len(known)))

    def settle(self) -> None:
        for tag, passed, episodes in sorted(self._since):
            self._visits[tag] = (*self._visits.get(tag, ()), (passed, episodes))[-self._config.groups :]
        self._since.clear()

    def metrics(self) -> dict[str, float]:
        measured = {f"mixture/{tag}/pass_rate": rate(visits) for tag, visits in sorted(self._visits.items())}
        return {f"mixture/{tag}/share": part for tag, part in self.shares().items()} | measured

    def state(self) -> JsonObject:
        return {"visits": self._visits, "since": self._since, "owed": self._owed}

    def restore(self, served: Mapping[str, int], state: JsonMapping) -> None:
        self._visits = {tag: tuple((passed, of) for passed, of in visits) for tag, visits in state["visits"].items()}
        self._since = [(tag, passed, of) for tag, passed, of in state["since"]]
        self._owed = dict(state["owed"])
