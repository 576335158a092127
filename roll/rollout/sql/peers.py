"""Who else takes part in a run, and how many groups an explorer may have in flight among them. Pure.

All explorers would take whatever may start, and the first to look would hold groups that wait in its queue while another has
nothing to do. So the places for groups in flight are divided by devices. The parts are rounded up: while a place is free, at
least one explorer has fewer groups than its part, and parts get smaller as groups are completed, so even one explorer completes a
batch alone if another, not found dead yet, does nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Row

from roll.errors import Expelled, TakenBack
from roll.rollout.sql.joining import Member
from roll.rollout.sql.news import News


class Peers:
    """The processes that are alive, as they were seen last."""

    def __init__(self, rows: Sequence[Row[object]] = ()) -> None:
        self._alive = [row for row in rows if row.state == "alive"]

    def beats(self) -> dict[str, tuple[int, int]]:
        """The term and the beat of each."""
        return {row.name: (row.term, row.beat) for row in self._alive}

    def explorers_beside(self, me: Member) -> dict[str, int]:
        """The other explorers, with the oldest version that each serves."""
        return {row.name: row.served for row in self._alive if row.served >= 0 and row.name != me.name}

    def accompany(self, me: Member) -> bool:
        """Whether a process of the run's other half is alive."""
        return any(row.role != me.role for row in self._alive)

    def share(self, me: Member, places: int) -> int:
        """The part of an explorer of `places`: groups in flight, and those that may start."""
        return share(places, me.devices, [row.devices for row in self._alive if row.served >= 0])


def check_part(news: News, me: Member, branch: int) -> None:
    """That this process takes part still. `branch`: the one that it has joined. Raises `TakenBack`, `Expelled`."""
    mine = next((row for row in news.members if row.name == me.name), None)
    if mine is not None and mine.term > me.term:  # a smaller one is of a database that was restored
        raise Expelled(f"process {mine.pid} on {mine.host} has taken the place of this one as {me.name} of the run")
    if news.run.branch != branch:
        raise TakenBack
    if mine is None or mine.state != "alive":
        raise Expelled(
            f"{me.name} was taken for dead by the other processes of this run, which roll out its groups anew: "
            "start it again (member_timeout says after how many silent seconds)"
        )


def share(places: int, devices: int, explorers: Collection[int]) -> int:
    """`explorers`: the devices of each, with `devices` itself."""
    return -(-places * devices // max(sum(explorers), devices))
