"""The rollouts of a domain as `reward_watch` looks at them, a window of groups at a time, and its file of first windows."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from roll.core.configs.plain import JsonObject
from roll.core.configs.ppo import AUDITED
from roll.core.data.sample import Sample, SampleGroup
from roll.core.record.journal import write_atomically
from roll.reports.exploits import RECENT, Seen, Sign, Window, rises, signs

FILE = "reward_watch.json.gz"
"""Holds the beginning with which a resumed run compares, beside samples.jsonl."""
GROUPS = 32
"""Groups of a domain between two looks."""
ROLLOUTS = 256
"""Most rollouts of these that are looked at."""
PATIENCE = 2
"""Looks, or validations, in a row that show the same."""


def rollouts_of(group: SampleGroup) -> list[Seen]:
    """Returns the rollouts of a group that have a reward: responses, or episodes, which may have several samples."""
    found = []
    for _, members in groupby(group.samples, lambda sample: sample.index):
        first, *others = members
        if first.reward is None:
            continue
        text, tokens = _text(first), first.own_tokens
        if others:
            text, tokens = "\n".join(map(_text, (first, *others))), sum(each.own_tokens for each in (first, *others))
        truth = "" if first.trajectory else first.prompt.ground_truth
        found.append(Seen(group.group_id, first.prompt.text, truth, text, tokens, first.reward, first.succeeded))
    return found


def _text(sample: Sample) -> str:
    return sample.response_text if sample.trajectory is None else "\n".join(turn.action for turn in sample.trajectory.turns)


class Domain:
    def __init__(self, episodes: bool, audited: Mapping[str, str]) -> None:
        """`episodes`: its rollouts are agents'. `audited`: the exploits that its audit found to be paid."""
        self._episodes, self._audited = episodes, audited
        self._open: list[Seen] = []
        self._groups = 0
        self._first: Window | None = None
        self._best: Window | None = None
        self._recent: deque[Window] = deque(maxlen=RECENT)
        self._shown: dict[str, int] = {}
        """Sign -> looks in a row that had it."""

    def add(self, rollouts: Sequence[Seen]) -> list[Sign]:
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
        if window.success > self._best.success:
            self._best = window
        self._recent.append(window)
        found = signs(self._first, self._best, list(self._recent), self._episodes, self._audited)
        self._shown = {each.name: self._shown.get(each.name, 0) + 1 for each in found}
        return [each for each in found if self._shown[each.name] >= PATIENCE]

    @property
    def rises(self) -> bool:
        """True if the reward is higher than at the beginning."""
        return self._first is not None and bool(self._recent) and rises(self._first.rewards, self._recent[-1].rewards)

    @property
    def fails(self) -> bool:
        """True if most rollouts fail, as at the beginning."""
        if self._first is None or not self._recent:
            return False
        last = self._recent[-1]
        return last.success < 0.5 and not rises(self._first.successes, last.successes)

    def beginning(self) -> tuple[Window | None, Window | None]:
        return self._first, self._best

    def to_json(self) -> JsonObject:
        first, best = (None if window is None else list(window.rollouts) for window in (self._first, self._best))
        return {"first": first, "best": None if best == first else best}

    def go_on(self, row: JsonObject) -> None:
        """Takes up the beginning of the run that this one goes on with. Raises `TypeError` and `KeyError`."""
        first = Window.of([Seen(*each) for each in row["first"]])
        self._first, self._best = first, first if row["best"] is None else Window.of([Seen(*each) for each in row["best"]])


def write_domains(folder: Path, domains: Mapping[str, Domain]) -> None:
    """Raises `OSError`."""
    known = {name: domain.to_json() for name, domain in domains.items() if domain.beginning()[0] is not None}
    write_atomically(folder / FILE, gzip.compress(json.dumps(known).encode(), compresslevel=1))


def read_domains(folder: Path) -> dict[str, JsonObject]:
    """Reads the domains; none if none can be read."""
    with suppress(OSError, EOFError, zlib.error, ValueError, RecursionError):
        found = json.loads(gzip.decompress((folder / FILE).read_bytes()))
        if isinstance(found, dict):
            return found
    return {}


def read_audits(run_dir: Path) -> dict[str, dict[str, str]]:
    """Returns the exploits that audits found to be paid, by domain and kind of player; none of audits whose subject has
    changed."""
    with suppress(OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
        found = json.loads((run_dir / AUDITED).read_bytes())
        return {name: dict(each.get("exploits", {})) for name, each in found.items() if not each["changed"]}
    return {}
