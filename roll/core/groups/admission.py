"""Admission: decides which groups may start and which the trainer takes, and counts their statuses. Pure: no clock, no I/O.

With B groups a step and ratio α, a group may start under policy version v only while

    places + buffered + in flight  <  (v + 1 + α) · B                                             (the limit)

and a group started under v must be trained by step v + ⌈α⌉ (its deadline). `places` are those of the steps that are done: B each,
one for every use of a group. Two facts make staleness bounded by construction:

* The limit implies, for every step k, that  places + |outstanding groups with deadline <= k|  <=  (k + 1) · B: there is room
  to train each group by its deadline.
* `select` takes ready groups earliest deadline first, and only if the remaining ones still fit. If it would not, a group
  that is still in flight has to be awaited first (`staleness_policy: wait`), however many younger ones are ready.

A group is as old as the number of the step that trains it says, whenever the step takes it: step k + 1 may take its groups while
step k still trains, and a step may take them one by one. Groups that steps have taken count as outstanding until they are
trained.

Where fewer than B groups are ready, and no step trains, groups that were trained may fill the batch (`Reuse`), each by its own
deadline. Both facts stand: such a use takes a place like any other, from the moment in which a step has its groups, and is
allowed only if all outstanding groups fit into the places left before their deadlines, so none of them is late because of it.

v is the oldest version that an engine serves. A newer one may be published that not all have taken yet: the requested depth of
rollouts (`depth`, at most α) counts from the newest version, the limit never does.

Dropped groups (filtered, failed, stale, ...) give their ticket back: they no longer count towards the limit. At every moment
admitted = trained + buffered + in flight + dropped, by id.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby, islice, takewhile
from operator import attrgetter

from roll.core.configs.plain import JsonObject
from roll.core.configs.staleness import GroupsOrder, StalenessPolicy, staleness_bound
from roll.core.errors import AccountingError
from roll.core.groups.reuse import Reuse, Trained
from roll.core.groups.ticket import GroupState, Selection, Ticket


class Admission:
    def __init__(
        self,
        batch_groups: int,
        ratio: float,
        max_steps: int,
        *,
        policy: StalenessPolicy = "wait",
        extra_groups: int = 0,
        version: int = 0,
        max_reuse: int = 1,
        order: GroupsOrder = "fifo",
        warm_steps: int = 0,
    ) -> None:
        """`batch_groups`: B. `extra_groups`: redundant groups that may run beyond the limit; the first B to finish are
        trained and the surplus is dropped. `version`: the policy version (= steps done) at the start of this run. `max_reuse`:
        how many steps may train a group. `order`: which ready groups a step takes; `newest` goes with the policy `drop`.
        `warm_steps`: the first steps, whose groups are rows of files: before their last version nothing starts ahead."""
        self.batch_groups = batch_groups
        self.ratio, self.bound = ratio, staleness_bound(ratio)
        self.max_steps = max_steps
        self.policy = policy
        self.extra_groups = extra_groups
        self.order = order
        self.warm_steps = warm_steps
        self.reuse = Reuse(max_reuse, self.bound)
        self.version = self.newest = version
        """`newest`: the newest published version, which the engines may not serve yet."""
        self.next_group_id = 0
        self.admitted = self.trained = version * batch_groups
        self.dropped: Counter[str] = Counter()
        self.live: dict[int, Ticket] = {}
        """Live groups in the order of start versions, and so of deadlines, and then of admission."""
        self._ready: list[tuple[int, int]] = []
        """Start version and id of the buffered groups, in order."""
        self._started_under: Counter[int] = Counter()
        """Start version -> live groups."""
        self._in_flight_under: Counter[int] = Counter()
        """Start version -> live groups that are in flight."""
        self.next_step = version
        """The first step that a group which starts now could be trained by: the one whose groups are not selected yet."""

    # -- admission ------------------------------------------------------------------------------------------------------

    def may_start(self, depth: float | None = None) -> bool:
        """True if one more group may start; `depth` (<= α) asks for a tighter limit than the staleness bound needs."""
        return self.room(depth) > 0

    def room(self, depth: float | None = None) -> int:
        """Returns the number of groups that may still start; see `may_start`."""
        return self._room(self.version, depth)

    def waits_for_weights(self, depth: float | None = None) -> bool:
        """True if no group may start, and one could if the engines served the newest version."""
        return self.newest > self.version and not self._room(self.version, depth) and self._room(self.newest, depth) > 0

    def _room(self, version: int, depth: float | None) -> int:
        """Returns the number of groups that may still start under `version`."""
        if self.next_step >= self.max_steps or version + self.bound < self.next_step:
            return 0  # nothing left to train, or (a redundant group before a publication) stale at birth
        warm = version < self.warm_steps
        ahead = version + 1 + (0 if warm else self.ratio)
        if depth is not None:
            ahead = min(ahead, self.newest + 1 + depth)
        limit = min(math.ceil(ahead * self.batch_groups - 1e-9), self.max_steps * self.batch_groups)
        limit += 0 if warm else self.extra_groups
        return max(0, limit - self.places - self.reuse.under_way - len(self.live))

    def earliest(self, versions: Iterable[int]) -> int:
        """Returns the oldest of these versions under which a group may start now, as if it had then; else the present one."""
        return min((each for each in versions if each < self.version and self._room(each, None)), default=self.version)

    def start(self, version: int | None = None) -> Ticket:
        """`version`: the start version of a group that was started before; None: the present one."""
        ticket = Ticket(self.next_group_id, self.version if version is None else version)
        self.next_group_id += 1
        self.admitted += 1
        self.live[ticket.group_id] = ticket
        if ticket.start_version < max(self._started_under, default=0):
            self.live = _in_order(self.live.values())
        self._started_under[ticket.start_version] += 1
        self._in_flight_under[ticket.start_version] += 1
        return ticket

    @property
    def most_live(self) -> int:
        """Returns the largest number of groups that may be live at the same time."""
        return math.ceil((1 + self.ratio) * self.batch_groups) + self.extra_groups

    def in_flight(self, group_id: int) -> bool:
        return group_id in self.live and self.live[group_id].state is GroupState.IN_FLIGHT

    @property
    def buffered(self) -> int:
        return len(self._ready)

    @property
    def places(self) -> int:
        """Returns the places of the steps that are done."""
        return self.trained + self.reuse.done

    def go_synchronous(self) -> None:
        """From now on groups start as with the ratio 0, and none is trained again. Those that are live keep their deadlines."""
        self.ratio = 0.0
        self.reuse.max_reuse = 1

    # -- statuses ----------------------------------------------------------------------------------------------------------

    def complete(self, group_id: int) -> None:
        """Moves a complete group to the buffer."""
        ticket = self._ticket(group_id)
        if ticket.state is not GroupState.IN_FLIGHT:
            raise AccountingError(f"group {group_id} was put into the buffer twice")
        ticket.state = GroupState.BUFFERED
        self._in_flight_under[ticket.start_version] -= 1
        insort(self._ready, (ticket.start_version, group_id))

    def drop(self, group_id: int, reason: str) -> None:
        """Drops a group, which will not be trained; its ticket is free again."""
        self._remove(self._ticket(group_id))
        self.dropped[reason] += 1

    def train(self, group_ids: tuple[int, ...]) -> None:
        """Marks the groups trained, for the first time or again."""
        first = [self._ticket(group_id) for group_id in group_ids if group_id not in self.reuse.groups]
        for ticket in first:
            if ticket.state is not GroupState.BUFFERED:
                raise AccountingError(f"group {ticket.group_id} was trained while in flight")
        self.reuse.train([group_id for group_id in group_ids if group_id in self.reuse.groups])
        for ticket in first:
            self._remove(ticket)
        self.trained += len(first)
        self.reuse.offer([Trained(ticket.group_id, ticket.start_version) for ticket in first], self.next_step)

    def set_published(self, version: int) -> None:
        """Records that `version` is published; the engines take it later."""
        self.newest = version

    def set_served(self, version: int) -> None:
        """Records that all engines serve `version`, or a newer one, from now on."""
        if version < self.version:
            raise AccountingError(f"policy version {version} published after {self.version}")
        self.version = version
        self.newest = max(self.newest, version)

    def _ticket(self, group_id: int) -> Ticket:
        if group_id not in self.live:
            raise AccountingError(f"group {group_id} is not live: it was trained or dropped before, or never admitted")
        return self.live[group_id]

    def _remove(self, ticket: Ticket) -> None:
        del self.live[ticket.group_id]
        self._started_under[ticket.start_version] -= 1
        if ticket.state is GroupState.BUFFERED:
            del self._ready[bisect_left(self._ready, (ticket.start_version, ticket.group_id))]
        else:
            self._in_flight_under[ticket.start_version] -= 1
        if not self._started_under[ticket.start_version]:
            del self._started_under[ticket.start_version], self._in_flight_under[ticket.start_version]

    # -- what a step trains ---------------------------------------------------------------------------------------------

    def deadline(self, ticket: Ticket) -> int:
        """Returns the last step that may train the group."""
        return ticket.start_version + self.bound

    def select(self, step: int, leased: Collection[int] = (), lacking: int | None = None) -> Selection:
        """The groups that step `step` (= steps done before it) trains, or why it has to wait: all B or, with `lacking`, those
        that are available now of the groups that it lacks. `leased`: the groups that steps have already. This is asked at every
        change: while too few are ready it counts them, and unless one is late it looks at none that is in flight."""
        self.next_step = step
        leased = frozenset(leased)
        stale = takewhile(lambda ticket: self.deadline(ticket) < step, self.live.values())
        drop = {ticket.group_id: self._why_stale(ticket) for ticket in stale if ticket.group_id not in leased}
        wanted, fewest = (self.batch_groups, self.batch_groups) if lacking is None else (lacking, 1)
        few = len(self._ready) - len(leased)  # without reuses, all that is leased lies ready
        if few < fewest and not drop and self.reuse.max_reuse == 1 and not self.reuse.groups:
            return Selection(waiting_for=f"{max(wanted - few, 1)} of {self.batch_groups} groups")
        ready = [group_id for _, group_id in self._ready if group_id not in drop and group_id not in leased]
        # While another step trains, the trainer is not idle yet.
        again = [] if leased or lacking is not None else self.reuse.choose(wanted - len(ready), step)
        wanted, fewest = wanted - len(again), fewest - len(again)
        none = Selection(drop=drop, waiting_for=f"{max(wanted - len(ready), 1)} of {self.batch_groups} groups")
        for count in range(min(wanted, len(ready)), fewest - 1, -1):
            take = ready[len(ready) - count :] if self.order == "newest" else ready[:count]
            selection = self._take(take, again, leased, drop, step, wanted - count)
            if selection.take:
                self.next_step = step + (count == wanted)
                return selection
            none = selection
        return none

    def _take(
        self, take: list[int], again: list[int], leased: Collection[int], drop: dict[int, str], step: int, later: int
    ) -> Selection:
        """The ready groups `take`, and those that are trained `again`, if those left behind can be trained by their deadlines.
        `later`: groups that the step takes after these."""
        if (self.policy == "wait" or again) and (short := self._shortage([*take, *leased], step, later)):
            version, late, of_ready = short
            if not (of_ready or drop or (self.extra_groups and not again)):  # the usual case, at every change
                newest = (ticket for ticket in reversed(self.live.values()) if ticket.start_version <= version)
                in_flight = (ticket.group_id for ticket in newest if ticket.state is GroupState.IN_FLIGHT)
                return Selection(waiting_for=self._reason(islice(in_flight, min(late, 3))))
            gone = {*take, *leased, *drop}
            those = self._late([ticket for group_id, ticket in self.live.items() if group_id not in gone], step, later)
            if self.extra_groups and not again:
                drop = drop | ({} if later else {ticket.group_id: "redundant" for ticket in those})
            else:
                # Ready groups are too many for their deadlines only if they come from a checkpoint with a larger bound.
                drop = drop | {ticket.group_id: "stale" for ticket in those if ticket.state is GroupState.BUFFERED}
                if ids := [ticket.group_id for ticket in those if ticket.state is GroupState.IN_FLIGHT]:
                    return Selection(drop=drop, waiting_for=self._reason(ids[:3]))
        return Selection(tuple(sorted([*take, *again])), drop)

    def _reason(self, group_ids: Iterable[int]) -> str:
        return f"group {', '.join(map(str, group_ids))} in flight, which must not become staler than {self.bound}"

    def _why_stale(self, ticket: Ticket) -> str:
        """Returns the reason. With the newest first, a ready group was overtaken by others; else it came too late."""
        return "overtaken" if self.order == "newest" and ticket.state is GroupState.BUFFERED else "stale"

    def _shortage(self, taken: list[int], step: int, later: int) -> tuple[int, int, bool] | None:
        """None if the other groups can all be trained by their deadlines, if the step takes `later` more of them and every later
        step trains B. Else the first start version up to which there are too many, by how many, and whether a ready one is among
        all that are: those in flight are first."""
        by_version = Counter(self.live[group_id].start_version for group_id in taken if group_id in self.live)
        first, left, in_flight = None, 0, 0
        for version in sorted(self._started_under):
            deadline = version + self.bound
            if deadline >= step:
                left += self._started_under[version] - by_version[version]
                in_flight += self._in_flight_under[version]
                if (late := left - (deadline - step) * self.batch_groups - later) > 0:
                    first = first or (version, late)
                    if late > in_flight:
                        return *first, True
                    left, in_flight = left - late, in_flight - late
        return (*first, False) if first else None

    def _late(self, left: list[Ticket], step: int, later: int) -> list[Ticket]:
        """The groups left behind (earliest deadline first) that could not be trained by their deadlines, even if the step took
        `later` of them and every later step trained B. In-flight groups are named before ready ones."""
        late: list[Ticket] = []
        in_flight: list[Ticket] = []
        ready: list[Ticket] = []
        for version, tickets in groupby(left, key=attrgetter("start_version")):
            for ticket in tickets:
                (in_flight if ticket.state is GroupState.IN_FLIGHT else ready).append(ticket)
            places = (version + self.bound - step) * self.batch_groups + later
            while len(in_flight) + len(ready) > places:
                late.append((in_flight or ready).pop())
        return late

    # -- accounts -------------------------------------------------------------------------------------------------------

    def counts(self) -> JsonObject:
        return {
            "admitted": self.admitted,
            "trained": self.trained,
            "reused": self.reuse.done,
            "buffered": len(self._ready),
            "in_flight": len(self.live) - len(self._ready),
            "dropped": dict(self.dropped),
        }

    def check(self) -> None:
        """Raises `AccountingError` unless every admitted group is accounted for."""
        total = self.trained + len(self.live) + self.dropped.total()
        if total != self.admitted:
            raise AccountingError(f"accounts do not balance: {self.admitted} groups admitted, {total} accounted: {self.counts()}")

    def state(self) -> JsonObject:
        """Returns the state for a checkpoint. Groups in flight are not part of it: on resume their prompts are served again."""
        accounts = {"next_group_id": self.next_group_id, "trained": self.trained, "dropped": dict(self.dropped)}
        return accounts | {"reused": self.reuse.done}

    def restore(
        self,
        state: JsonObject,
        buffered: dict[int, int],
        in_flight: Mapping[int, int] | None = None,
        trained: Iterable[Trained] = (),
    ) -> None:
        """`buffered`: group id -> start version of the groups that the buffer brought back. `in_flight`: those that other
        processes roll out. `trained`: trained groups whose samples are there."""
        self.next_group_id = state["next_group_id"]
        self.trained = state["trained"]
        self.next_step = (self.trained + state["reused"]) // self.batch_groups
        self.reuse.restore(state["reused"], trained, self.next_step)
        self.dropped = Counter(state["dropped"])
        self._ready = sorted((version, group_id) for group_id, version in buffered.items())
        tickets = [Ticket(i, version, GroupState.BUFFERED) for i, version in buffered.items()]
        tickets += [Ticket(i, version) for i, version in (in_flight or {}).items()]
        self.live = _in_order(tickets)
        self._started_under = Counter(ticket.start_version for ticket in tickets)
        self._in_flight_under = Counter((in_flight or {}).values())
        self.admitted = self.trained + len(self.live) + self.dropped.total()


def _in_order(tickets: Iterable[Ticket]) -> dict[int, Ticket]:
    return {ticket.group_id: ticket for ticket in sorted(tickets, key=attrgetter("start_version", "group_id"))}
