"""The groups of a run: statuses from groups.jsonl, joined with the rollouts in samples.jsonl; filtered, sorted, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple

from roll.view.journal import Journal, Place, Row, number, shown, whole
from roll.view.samples import KeptGroup, Samples, key_of, mean, within

MOST_GROUPS = 2_000_000
"""Groups of one run, about 600 MB; later ones are left out, and counted."""
MOST_ROWS = 500
"""Rows of one page of the table."""
BINS = 20
NO_EPOCHS = "train"
"""Beginning of the name of an environment's prompt; the kind of environment follows, and then its number."""


class GroupRow(NamedTuple):
    step: int
    group_id: int | None
    uid: str
    domain: str
    status: str
    reason: str
    lag: int | None
    reward: float | None
    """Mean over the rollouts."""
    rollouts: int
    length: float | None
    """Response tokens, mean over the rollouts."""
    cut: float | None
    """Share of rollouts that were cut off; None if unrecorded."""
    kept: bool
    """True if its rollouts can be read."""
    explorer: str = ""
    """The explorer that rolled it out, if known."""

    @property
    def key(self) -> str:
        return key_of(self.step, self.group_id, self.uid)

    def plain(self) -> Row:
        return {"key": self.key, **self._asdict()}


@dataclass(frozen=True, slots=True)
class GroupQuery:
    """Selection of groups, and their order. An empty field or None selects all."""

    step_from: int | None = None
    step_to: int | None = None
    domain: str = ""
    status: str = ""
    reason: str = ""
    explorer: str = ""
    prompt: str = ""
    """Part of the prompt's name."""
    reward_from: float | None = None
    reward_to: float | None = None
    """Inclusive."""
    kept: bool = False
    """Only those whose rollouts can be read."""
    sort: str = "step"
    descending: bool = False
    offset: int = 0
    limit: int = 50

    @classmethod
    def parsed(cls, given: Mapping[str, str]) -> GroupQuery:
        """Reads the texts of a link; other names than the fields are ignored. Raises `ValueError`."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            if said := given.get(field.name):
                kind = str(field.type)
                numeric = float if "float" in kind else int
                values[field.name] = said if kind == "str" else said == "true" if kind == "bool" else numeric(said)
        found = cls(**values)
        if found.sort not in GroupRow._fields:
            raise ValueError(f"cannot sort by {found.sort!r}: one of {', '.join(GroupRow._fields)}")
        return found

    def has(self, group: GroupRow) -> bool:
        return (
            (self.step_from is None or group.step >= self.step_from)
            and (self.step_to is None or group.step <= self.step_to)
            and (not self.domain or group.domain == self.domain)
            and (not self.status or group.status == self.status)
            and (not self.reason or group.reason == self.reason)
            and (not self.explorer or group.explorer == self.explorer)
            and (not self.kept or group.kept)
            and self.prompt in group.uid
            and within(group.reward, self.reward_from, self.reward_to)
        )


class EndedGroups(Journal):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "groups.jsonl")
        self.left_out = 0
        self.forget()

    def forget(self) -> None:
        self.groups: list[GroupRow] = []
        self.counts: Counter[tuple[str, str]] = Counter()
        """Number of groups by status and reason."""

    def take(self, row: Row, place: Place) -> None:
        step, group_id = whole(row.get("step")), whole(row.get("group_id"))
        if step is None or group_id is None:
            self.damaged += 1
            return
        status, reason = intern(shown(row.get("status"))), intern(shown(row.get("reason")))
        self.counts[status, reason] += 1
        if len(self.groups) >= MOST_GROUPS:
            self.left_out += 1
            return
        uid = shown(row.get("prompt_uid"))
        given = row.get("rewards")
        given = given if isinstance(given, list) else []
        rewards, count = [found for one in given if (found := number(one)) is not None], len(given)
        tokens = number(row.get("tokens"))
        length = tokens / count if count and tokens is not None else None
        lag, domain = whole(row.get("lag")), intern(domain_of(uid))
        self.groups.append(GroupRow(step, group_id, uid, domain, status, reason, lag, mean(rewards), count, length, None, False))


def domain_of(uid: str) -> str:
    parts = uid.split("/")
    return parts[1] if parts[0] == NO_EPOCHS and len(parts) > 2 else parts[0]


def prompt_of(uid: str) -> str:
    """Returns the name of a prompt, the same in all epochs."""
    parts = uid.split("/")
    return "/".join([parts[0], *parts[2:]]) if len(parts) > 2 and parts[1].isdigit() else uid


def all_groups(statuses: EndedGroups, samples: Samples) -> Iterator[GroupRow]:
    """Yields groups in the order in which they ended; validations, and groups of which only rollouts are known, come last."""
    known: set[str] = set()
    for group in statuses.groups:
        found = samples.of(group.group_id, group.step) if group.group_id is not None else None
        if found is None:
            yield group
            continue
        known.add(found.key)
        reward = found.reward if group.reward is None else group.reward
        length = found.length if group.length is None else group.length
        rollouts, cut, domain = group.rollouts or found.rollouts, found.cut, found.domain or group.domain
        yield group._replace(domain=domain, reward=reward, rollouts=rollouts, length=length, cut=cut, kept=True)
    yield from (of_samples(found) for key, found in samples.groups.items() if key not in known)


def of_samples(found: KeptGroup) -> GroupRow:
    """Returns the row of a group whose status is unknown."""
    known = (found.reward, found.rollouts, found.length, found.cut, True)
    return GroupRow(found.step, found.group_id, found.uid, found.domain, found.status, found.reason, None, *known)


class GroupPage(NamedTuple):
    total: int
    rows: list[GroupRow]
    histogram: list[tuple[float, float, int]]
    """Mean rewards of the groups selected by all else but rewards: from, to, count."""
    domains: list[str]
    explorers: list[str]


def page(groups: Iterable[GroupRow], selection: GroupQuery) -> GroupPage:
    everything = list(groups)
    of_any_reward = replace(selection, reward_from=None, reward_to=None)
    chosen = [group for group in everything if of_any_reward.has(group)]
    bins = histogram([group.reward for group in chosen if group.reward is not None])
    found = [group for group in chosen if selection.has(group)]
    by: Callable[[GroupRow], Any] = attrgetter(selection.sort)
    ordered = sorted((group for group in found if by(group) is not None), key=by, reverse=selection.descending)
    ordered += [group for group in found if by(group) is None]
    first = max(0, selection.offset)
    rows = ordered[first : first + max(0, min(selection.limit, MOST_ROWS))]
    domains, explorers = {group.domain for group in everything}, {group.explorer for group in everything}
    return GroupPage(len(ordered), rows, bins, sorted(domains), sorted(explorers - {""}))


def histogram(rewards: Sequence[float], bins: int = BINS) -> list[tuple[float, float, int]]:
    """Returns one bin for each reward where there are few, else so many of the same width."""
    if not rewards:
        return []
    counts = Counter(rewards)
    if len(counts) <= bins:
        return [(value, value, counts[value]) for value in sorted(counts)]
    low, high = min(rewards), max(rewards)
    width = (high - low) / bins
    places = Counter(min(int((reward - low) / width), bins - 1) for reward in rewards)
    return [(low + i * width, low + (i + 1) * width if i < bins - 1 else high, places[i]) for i in range(bins)]
