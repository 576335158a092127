"""samples.jsonl by group: places of each group's rollouts in the file, and the figures to choose among them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from sys import intern
from typing import NamedTuple

from roll.core.record.journal import journal_parts
from roll.view.journal import Journal, Place, Row, number, shown, whole

SORTS = ("step", "reward", "length", "group")
MOST_SAMPLES = 1_000_000
"""Rollouts of one run, about 250 MB; later ones are left out, and counted."""


class KeptRollout(NamedTuple):
    """A recorded rollout."""

    place: Place
    member: int
    """Position in its group."""
    reward: float | None
    tokens: int
    cut: bool
    """True if its response was cut off at the token limit."""
    begins: bool
    """False for the later turns of an episode whose turns are samples of their own."""


class KeptGroup(NamedTuple):
    """The rollouts of a group that a step trained, or that was dropped or validated then."""

    step: int
    group_id: int | None
    """None for a validation."""
    uid: str
    domain: str
    status: str
    reason: str
    file: str
    samples: list[KeptRollout]

    @property
    def key(self) -> str:
        return key_of(self.step, self.group_id, self.uid)

    @property
    def rollouts(self) -> int:
        return sum(sample.begins for sample in self.samples)

    @property
    def reward(self) -> float | None:
        return mean([sample.reward for sample in self.samples if sample.begins and sample.reward is not None])

    @property
    def length(self) -> float | None:
        """Mean response tokens of a rollout."""
        return sum(sample.tokens for sample in self.samples) / self.rollouts if self.rollouts else None

    @property
    def cut(self) -> float | None:
        return mean([float(sample.cut) for sample in self.samples])


def key_of(step: int, group_id: int | None, uid: str) -> str:
    """Returns the name of a group at a step, as links have it."""
    return f"{step}/{uid if group_id is None else group_id}"


def mean(values: list[float]) -> float | None:
    found = sum(values) / len(values) if values else math.nan
    return found if math.isfinite(found) else None


@dataclass(frozen=True, slots=True)
class RolloutQuery:
    """Selection of the rollouts of some groups, and their order."""

    sort: str
    descending: bool
    most: int
    """0: all."""
    reward_from: float | None
    reward_to: float | None
    """Inclusive."""

    def of(self, groups: Iterable[KeptGroup]) -> list[tuple[KeptGroup, KeptRollout]]:
        found = [
            (group, kept) for group in groups for kept in group.samples if within(kept.reward, self.reward_from, self.reward_to)
        ]
        found.sort(key=self._place, reverse=self.descending)
        return found[: self.most] if self.most else found

    def _place(self, one: tuple[KeptGroup, KeptRollout]) -> float:
        group, kept = one
        number = {"step": group.step, "reward": kept.reward, "length": kept.tokens, "group": group.group_id}[self.sort]
        return math.inf if number is None else number


def within(value: float | None, low: float | None, high: float | None) -> bool:
    if low is None and high is None:
        return True
    return value is not None and (low is None or value >= low) and (high is None or value <= high)


class _File(Journal):
    """One file of the journal."""

    def __init__(self, folder: Path, name: str, samples: Samples) -> None:
        super().__init__(folder, name)
        self._samples = samples

    def take(self, row: Row, place: Place) -> None:
        self.damaged += not self._samples.take(row, self.name, place)

    def forget(self) -> None:
        self._samples.forget(self.name)


class Samples:
    """samples.jsonl and the files that continue it, and those of explorers that are processes of their own. The rollouts of a
    group lie in one file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, _File] = {}
        self.left_out = 0
        self.groups: dict[str, KeptGroup] = {}
        """By key."""
        self._of_group: dict[int, list[str]] = {}
        self._count = 0

    @property
    def damaged(self) -> int:
        return sum(file.damaged for file in self._files.values())

    def look(self) -> bool:
        """As `Journal.look`. Rows of a file that is gone are forgotten."""
        own = self._folder / "explorers"
        explorers = [] if own.is_symlink() else [path for path in sorted(own.glob("*/")) if not path.is_symlink()]
        places = [self._folder, *explorers]
        names = [str(part.path.relative_to(self._folder)) for place in places for part in journal_parts(place / "samples.jsonl")]
        gone = self._files.keys() - set(names)
        for name in gone:
            self.forget(name)
            del self._files[name]
        self._files |= {name: _File(self._folder, name, self) for name in names if name not in self._files}
        return any([file.look() for file in self._files.values()]) or bool(gone)

    def take(self, row: Row, file: str, place: Place) -> bool:
        """Returns True if it is a row of this journal."""
        step, group_id, uid = whole(row.get("step")), whole(row.get("group_id")), shown(row.get("prompt_uid"))
        if step is None:
            return False
        if self._count >= MOST_SAMPLES:
            self.left_out += 1
            return True
        self._count += 1
        key = key_of(step, group_id, uid)
        if key not in self.groups:
            status, _, reason = shown(row.get("status")).partition(": ")
            domain = intern(shown(row.get("domain")))
            self.groups[key] = KeptGroup(step, group_id, uid, domain, intern(status), intern(reason), file, [])
            if group_id is not None:
                self._of_group.setdefault(group_id, []).append(key)
        if self.groups[key].file == file:
            self.groups[key].samples.append(_kept(row, place))
        return True

    def forget(self, file: str) -> None:
        """The rows of a file count no more."""
        for key in [key for key, group in self.groups.items() if group.file == file]:
            group = self.groups.pop(key)
            self._count -= len(group.samples)
            if group.group_id is not None:
                self._of_group[group.group_id].remove(key)

    def of(self, group_id: int, step: int) -> KeptGroup | None:
        """Returns the known rollouts of a group at a step. groups.jsonl may count the steps of a dropped group differently by
        one."""
        keys = self._of_group.get(group_id, [])
        exact = key_of(step, group_id, "")
        return self.groups[exact if exact in keys else keys[-1]] if keys else None

    def row(self, group: KeptGroup, kept: KeptRollout) -> Row:
        """Raises `ValueError` or `OSError` if the file has it no more."""
        return self._files[group.file].row_at(kept.place)


def _kept(row: Row, place: Place) -> KeptRollout:
    ids, trajectory = row.get("response_ids"), row.get("trajectory")
    tokens = len(ids) if isinstance(ids, list) else 0
    begins = not isinstance(trajectory, dict) or trajectory.get("first_turn", 0) == 0
    cut = row.get("finish_reason") == "length"
    return KeptRollout(place, whole(row.get("index")) or 0, number(row.get("reward")), tokens, cut, begins)
