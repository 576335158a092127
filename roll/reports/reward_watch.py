"""`reward_watch`: tells, while a run runs, that its policy collapses, or earns reward by something else than right answers."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping

from roll.core.configs.watching import AlarmAction
from roll.core.data.sample import SampleGroup
from roll.core.record.callbacks import Callback
from roll.plan.rules.warm_start_rules import ROWS
from roll.reports.exploits import RECENT, Seen, Sign, Window, rises, signs
from roll.reports.warnings import Warnings

GROUPS = 32
"""Groups of a domain after which it is looked at."""
ROLLOUTS = 256
"""Of those, the most rollouts that are looked at."""
PATIENCE = 2
"""Looks, or validations, in a row that show the same."""
SHOWN = 120
"""Characters of a response that is quoted."""
_HELD_OUT = re.compile(r"eval/(?P<set>.+)/all/avg@\d+")


class RewardWatch(Callback):
    """Compares rollouts with those of the beginning of the run; of a run that was resumed, with those after it was.

    Responses to prompts alone: what an agent repeats, and how long an episode is, is its environment's."""

    def __init__(self, action: AlarmAction, warnings: Warnings) -> None:
        self._action, self._warnings = action, warnings
        self._domains: dict[str, _Domain] = {}
        self._best: dict[str, tuple[float, float]] = {}
        """Validation set -> success at its best, and the low end of its interval."""
        self._fallen: dict[str, int] = {}
        self._told: set[tuple[str, str]] = set()

    def on_group(self, group: SampleGroup, reason: str | None) -> None:
        if group.prompt.domain == ROWS:  # nobody has sampled them
            return
        seen = [
            Seen(group.group_id, s.prompt.text, s.prompt.ground_truth, s.response_text, s.own_tokens, s.reward, s.succeeded)
            for s in group.samples
            if s.reward is not None and s.trajectory is None
        ]
        if seen:
            domain = self._domains.setdefault(group.prompt.domain, _Domain())
            for sign in domain.add(seen):
                self._tell(group.prompt.domain, sign, f"by group {group.group_id}")

    def on_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Success on held-out prompts that is below its best by more than chance, while the reward has risen."""
        for name, value in metrics.items():
            if (found := _HELD_OUT.fullmatch(name)) is None:
                continue
            which, (best, low) = found["set"], self._best.get(found["set"], (value, 0.0))
            if value >= best:
                self._best[which] = (value, metrics[f"{name}/low"])
            self._fallen[which] = self._fallen.get(which, 0) + 1 if metrics[f"{name}/high"] < low else 0
            rising = [domain for domain, own in self._domains.items() if own.rises]
            if self._fallen[which] >= PATIENCE and rising:
                said = f"held-out success ({name}) fell from {best:.0%} to {value:.0%} while the reward rises"
                self._tell(rising[0], Sign(f"held out {which}", said), f"step {step}")

    def _tell(self, domain: str, sign: Sign, when: str) -> None:
        if (domain, sign.name) in self._told:
            return
        self._told.add((domain, sign.name))
        shown = "".join(f"; group {each.group}: {' '.join(each.text.split())[:SHOWN]!r}" for each in sign.examples)
        line = f"reward_watch: {domain}, {when}: {sign.sentence}{shown}"
        self._warnings.add(f"{line} (samples.jsonl has the texts; roll env audit tries the reward)")
        if self._action == "stop":
            self.stop(line, "stopped")


class _Domain:
    def __init__(self) -> None:
        self._open: list[Seen] = []
        self._groups = 0
        self._first: Window | None = None
        self._best: Window | None = None
        self._recent: deque[Window] = deque(maxlen=RECENT)
        self._shown: dict[str, int] = {}
        """Sign -> looks in a row that had it."""

    def add(self, rollouts: list[Seen]) -> list[Sign]:
        """Returns the signs that have been there for long enough."""
        self._groups += 1
        if len(self._open) + len(rollouts) <= ROLLOUTS:
            self._open += rollouts
        if self._groups < GROUPS or not self._open:
            return []
        window, self._open, self._groups = Window.of(self._open), [], 0
        if self._first is None or self._best is None:
            self._first = self._best = window
            return []
        self._best = max(self._best, window, key=lambda each: each.success)
        self._recent.append(window)
        found = signs(self._first, self._best, list(self._recent))
        self._shown = {each.name: self._shown.get(each.name, 0) + 1 for each in found}
        return [each for each in found if self._shown[each.name] >= PATIENCE]

    @property
    def rises(self) -> bool:
        return self._first is not None and bool(self._recent) and rises(self._first.rewards, self._recent[-1].rewards)
