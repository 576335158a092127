"""Chooses the prompts that an epoch leaves out, by the pass rates that the run has measured. Pure.

A prompt takes part in an epoch with the probability `share` of p, the share of passed responses in its last `visits` visits; a
prompt without visits takes part. The draw is a function of seed, domain, epoch and row alone, and p of the visits by groups that
had ended when a step was trained: with `async_generation_ratio: 0` a run is the same every time.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence

from roll.core.configs.arguments import PassRateConfig
from roll.core.configs.plain import JsonMapping, JsonObject
from roll.core.data.pass_rates import Visits, rate, share
from roll.core.data.seeding import SEEDS, derive_seed

CLASSES = ("never", "hard", "easy", "always")
"""Difficulty classes of visited prompts: p = 0, p <= 1/2, p < 1, p = 1."""
NEW = "new"


def difficulty(visits: Visits) -> str:
    if not visits:
        return NEW
    pass_rate = rate(visits)
    return CLASSES[0 if pass_rate == 0 else 1 if pass_rate <= 0.5 else 2 if pass_rate < 1 else 3]


class PassRates:
    def __init__(self, config: PassRateConfig, seed: int) -> None:
        self._config, self._seed = config, seed
        self._known: dict[str, dict[int, Visits]] = {}
        """Domain -> row -> its visits."""
        self._since: list[tuple[str, int, int, int]] = []
        """(domain, row, passed, responses) since the last `settle`."""
        self._latest: dict[str, tuple[int, int]] = {}
        """Totals of the last `settle`: the class that the prompts had before -> (passed, responses)."""

    def visited(self, domain: str, row: int, passed: int, responses: int) -> None:
        """Records a group of the prompt: `responses` with a reward (at least one), of which `passed` have a full one."""
        self._since.append((domain, row, passed, responses))

    def settle(self) -> None:
        """Adds the visits recorded since the last call to the pass rates."""
        sums: dict[str, Counter[str]] = {}
        for domain, row, passed, responses in sorted(self._since):
            known = self._known.setdefault(domain, {})
            before = known.get(row, ())
            sums.setdefault(difficulty(before), Counter()).update(passed=passed, responses=responses)
            known[row] = (*before, (passed, responses))[-self._config.visits :]
        self._since.clear()
        self._latest = {name: (found["passed"], found["responses"]) for name, found in sums.items()}

    def left_out(self, domain: str, epoch: int, rows: int) -> Sequence[int]:
        """Returns the rows (of `rows`) left out of the epoch, ascending. An epoch that would leave out all leaves out none."""
        known = self._known.get(domain, {})
        found = array("I", (row for row in sorted(known) if self._draw(domain, epoch, row) >= self._share(known[row])))
        return found if len(found) < rows else ()

    def _share(self, visits: Visits) -> float:
        return share(rate(visits), self._config.least)

    def _draw(self, domain: str, epoch: int, row: int) -> float:
        """Uniform in [0, 1)."""
        return derive_seed(self._seed, "pass rate", domain, epoch, row) / SEEDS

    def metrics(self, rows: int) -> dict[str, float]:
        """Counts the `rows` prompts of all domains by class, and gives each class's share of passed responses in the last
        `settle`, by the class that a prompt had before."""
        classes = Counter(difficulty(visits) for known in self._known.values() for visits in known.values())
        classes[NEW] = rows - classes.total()
        counts = {f"pass_rate/{name}/prompts": float(classes[name]) for name in (NEW, *CLASSES)}
        means = {f"pass_rate/{name}/mean": passed / responses for name, (passed, responses) in self._latest.items()}
        return counts | means

    def state(self) -> JsonObject:
        """The state as plain JSON."""
        known = {domain: {str(row): visits for row, visits in rows.items()} for domain, rows in self._known.items()}
        return {"known": known, "since": self._since, "latest": self._latest}

    def restore(self, state: JsonMapping) -> None:
        """Continues from a `state()`."""
        self._known = {
            domain: {int(row): tuple((passed, responses) for passed, responses in visits) for row, visits in rows.items()}
            for domain, rows in state["known"].items()
        }
        self._since = [(domain, row, passed, responses) for domain, row, passed, responses in state["since"]]
        self._latest = {name: (passed, responses) for name, (passed, responses) in state["latest"].items()}
