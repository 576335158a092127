"""How often each tag is played, by the pass rates that the run has measured. Pure.

A tag counts as its weight times `share` of its pass rate (`roll.data.pass_rates`), that of its last groups; one without a success
that is known counts as its weight. Whoever is owed most is next: each tag is owed its share of every group, and pays one when it
is served. So shares may change from step to step, and what was owed before is neither lost nor made up for twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roll.configs.agentic import PassRateMixtureConfig
from roll.data.pass_rates import Visits, rate, share
from roll.data.sample import Sample


class TagMixture:
    def __init__(self, weights: Mapping[str, float], config: PassRateMixtureConfig) -> None:
        self._weights, self._config = dict(weights), config
        self._visits: dict[str, Visits] = {}
        self._since: list[tuple[str, int, int]] = []
        """(tag, passed, episodes) since the last `settle`."""
        self._owed = dict.fromkeys(self._weights, 0.0)

    def next(self) -> str:
        for tag, part in self.shares().items():
            self._owed[tag] += part
        tag = max(self._owed, key=lambda tag: self._owed[tag])
        self._owed[tag] -= 1
        return tag

    def shares(self) -> dict[str, float]:
        counted = {tag: weight * self._learnable(tag) for tag, weight in self._weights.items()}
        total = sum(counted.values())
        return {tag: value / total for tag, value in counted.items()}

    def _learnable(self, tag: str) -> float:
        visits = self._visits.get(tag)
        return share(rate(visits), self._config.least) if visits else 1.0

    def visited(self, tag: str, samples: Sequence[Sample]) -> None:
        """A group of the tag has met its fate."""
        told = [each.trajectory.success for each in samples if each.begins_rollout and each.trajectory is not None]
        known = [success for success in told if success is not None]
        if known:
            self._since.append((tag, sum(known), len(known)))

    def settle(self) -> None:
        """What was visited counts from now on."""
        for tag, passed, episodes in sorted(self._since):
            self._visits[tag] = (*self._visits.get(tag, ()), (passed, episodes))[-self._config.groups :]
        self._since.clear()

    def metrics(self) -> dict[str, float]:
        measured = {f"mixture/{tag}/pass_rate": rate(visits) for tag, visits in sorted(self._visits.items())}
        return {f"mixture/{tag}/share": part for tag, part in self.shares().items()} | measured

    def state(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"visits": self._visits, "since": self._since, "owed": self._owed}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state()`."""
        self._visits = {tag: tuple((passed, of) for passed, of in visits) for tag, visits in state["visits"].items()}
        self._since = [(tag, passed, of) for tag, passed, of in state["since"]]
        self._owed = dict(state["owed"])
