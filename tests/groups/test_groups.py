"""The owner of the groups: accounts, contents and journal change together, and whoever waits is woken by what changed."""

import asyncio
import json
from pathlib import Path

import pytest

from roll.core.data.sample import Prompt, Sample, VersionSpan
from roll.core.errors import AccountingError, Closed, NoProgress
from roll.core.groups.admission import Admission
from roll.core.groups.changes import Changes
from roll.core.groups.groups import LEASE, START
from roll.core.groups.memory_groups import MemoryGroups
from roll.core.groups.parts import GroupParts
from roll.core.groups.pipeline_depth import PipelineDepth
from roll.core.groups.progress import Progress
from roll.core.record.trace import Trace


def run(main):
    asyncio.run(asyncio.wait_for(main(), 5))


class Tasks:
    """A source that counts; `cursor` tells what is to be served again."""

    def __init__(self):
        self.served = self.settled = 0
        self.learnt = []

    def next(self):
        self.served += 1
        return Prompt(f"d/0/{self.served - 1}", [1, 2], "ab", "t", "d", "truth", {"level": 3})

    def ended(self, group):
        self.learnt.append(group.prompt.uid)

    def settle(self):
        self.settled += 1

    def cursor(self, outstanding=()):
        return {"served": self.served, "again": [prompt.uid for prompt in outstanding]}


class Journal:
    def __init__(self):
        self.rows = []

    def write(self, **row):
        self.rows.append(row)


class Setting:
    """`ratio` 1 and two groups a step, a clock that the test sets."""

    def __init__(self, ratio=1.0, most_dropped=0, **options):
        self.now = 0.0
        self.accounts = Admission(2, ratio, max_steps=10, **options)
        self.depth = PipelineDepth(ratio, fixed=ratio)
        self.journal = Journal()
        self.trace = Trace(Path("trace"), lambda: self.now)
        progress = Progress(2, most_dropped)
        self.tasks = Tasks()
        self.groups = MemoryGroups(
            GroupParts(self.accounts, self.depth, self.tasks, self.journal, self.trace, progress, lambda: self.now)
        )

    async def start(self):
        group = await self.groups.start()
        versions = [VersionSpan(0, 2, group.start_version)]
        group.samples = [Sample(group.prompt, 0, [5, 6], [-0.5, -0.25], versions, "stop", "xy", 1.0)]
        return group

    async def finished(self):
        group = await self.start()
        await self.groups.complete(group)
        return group

    @property
    def waiting_for(self):
        return self.groups.changes.waits.get(LEASE, "")


def test_a_lease_waits_says_for_what_and_takes_the_groups_in_the_order_of_admission():
    async def main():
        s = Setting()
        first, second, third = [await s.start() for _ in range(3)]
        lease = asyncio.create_task(s.groups.lease(0))
        await asyncio.sleep(0)
        assert s.waiting_for == "2 of 2 groups"
        await s.groups.complete(second)
        await asyncio.sleep(0)
        assert s.waiting_for == "1 of 2 groups" and not lease.done()
        await s.groups.complete(first)
        taken = await lease
        assert taken.step == 0
        assert taken.group_ids == (0, 1)
        assert taken.groups == (first, second)
        assert s.waiting_for == ""
        await s.groups.complete(third)
        assert s.accounts.counts()["buffered"] == 3, "leased ones are buffered until they are trained"

    run(main)


def test_a_wait_with_an_owner_says_what_for_as_long_as_it_lasts():
    async def main():
        changes, ready = Changes(), []
        waiting = asyncio.ensure_future(changes.until(lambda: ready, "publish", "all engines serve version 1"))
        await asyncio.sleep(0)
        assert changes.waits == {"publish": "all engines serve version 1"}
        ready.append(1)
        changes.notify()
        assert await waiting == [1] and changes.waits == {}
        other = asyncio.ensure_future(changes.until(lambda: False, "publish", "ever"))
        await asyncio.sleep(0)
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        assert changes.waits == {}, "a wait that is given up is over, too"

    asyncio.run(main())


def test_a_group_starts_as_soon_as_admission_has_room_and_not_before():
    async def main():
        s = Setting(ratio=0.0)
        groups = [await s.start() for _ in range(2)]
        more = asyncio.create_task(s.groups.start())
        await asyncio.sleep(0)
        assert not more.done() and s.groups.changes.waits[START] == "2 groups outstanding under version 0"
        await s.groups.drop(groups[0].group_id, "reward_error")
        replacement = await more
        assert replacement.group_id == 2 and START not in s.groups.changes.waits

    run(main)


def test_leased_groups_stay_until_they_are_trained_and_each_has_one_row_in_the_journal():
    async def main():
        s = Setting()
        for _ in range(2):
            await s.finished()
        lease = await s.groups.lease(0)
        assert s.accounts.counts()["buffered"] == 2, "a crash now loses nothing"
        assert len(s.groups.buffered()) == 2
        with pytest.raises(RuntimeError, match="step 0 asks for groups, and has all"):
            await s.groups.lease(0)
        await s.groups.trained(lease)
        assert s.accounts.counts() == {
            "admitted": 2, "trained": 2, "reused": 0, "buffered": 0, "in_flight": 0, "dropped": {},
        }  # fmt: skip
        assert s.groups.buffered() == []
        late = await s.start()
        await s.groups.drop(late.group_id, "filter_std")
        assert (s.tasks.learnt, s.tasks.settled) == (["d/0/0", "d/0/1", "d/0/2"], 1), "what came of each task, once"
        rows = [(row["group_id"], row["status"], row["reason"], row["step"], row["lag"]) for row in s.journal.rows]
        assert rows == [(0, "trained", "", 1, 0), (1, "trained", "", 1, 0), (2, "dropped", "filter_std", 1, None)]
        assert [(row.pop("rewards"), row.pop("tokens")) for row in s.journal.rows] == [([1.0], 2)] * 3
        events = json.loads(f"[{','.join(piece.text for piece in s.trace.files()[0].pieces)}]")
        shown = {e["id"]: e["args"] for e in events if (e["ph"], e["name"]) == ("b", "group")}
        assert shown == {row["group_id"]: row | {"tokens_by_version": {"0": 2}} for row in s.journal.rows}
        assert [e["name"] for e in events if (e["ph"], e["id"]) == ("b", 0)] == ["group", "rollout", "buffered", "training"]

    run(main)


def test_a_lease_knows_when_it_was_asked_for_and_since_when_it_lay_complete():
    async def main():
        s = Setting()
        for _ in range(2):
            await s.finished()
        lease = await s.groups.lease(0)
        await s.finished()
        s.now = 3.0
        await s.finished()
        s.now = 5.0
        await s.groups.trained(lease)
        lease = await s.groups.lease(1)
        assert (lease.complete_at, lease.asked_at, lease.leased_at) == (3.0, 5.0, 5.0)
        await s.groups.trained(lease)
        await s.groups.set_served(1)
        s.now = 6.0
        waiting = asyncio.create_task(s.groups.lease(2))
        await asyncio.sleep(0)
        for _ in range(2):
            s.now += 1
            await s.finished()
        lease = await waiting
        assert (lease.asked_at, lease.complete_at, lease.leased_at) == (6.0, 8.0, 8.0), "it was awaited"

    run(main)


def test_the_next_step_takes_its_groups_while_a_step_trains_and_each_group_is_taken_once():
    async def main():
        s = Setting()
        first = [await s.finished() for _ in range(2)]
        now = await s.groups.lease(0)
        ahead = asyncio.create_task(s.groups.lease(1))
        await asyncio.sleep(0)
        assert s.waiting_for == "2 of 2 groups", "the groups of step 0 are its own"
        second = [await s.finished() for _ in range(2)]
        assert now.groups == tuple(first) and (await ahead).groups == tuple(second)
        assert s.accounts.counts()["buffered"] == len(s.groups.buffered()) == 4, "a checkpoint of this moment has both"
        assert not s.accounts.may_start(), "a group of version 0 would be too old for step 2"
        await s.groups.trained(now)
        await s.groups.trained(await ahead)
        assert [(row["step"], row["lag"]) for row in s.journal.rows] == [(1, 0), (1, 0), (2, 1), (2, 1)]

    run(main)


def test_a_step_takes_its_groups_as_they_come_and_is_trained_when_it_has_all():
    async def main():
        s = Setting()
        groups = [await s.start() for _ in range(3)]
        part = asyncio.create_task(s.groups.lease(0, on_arrival=True))
        await asyncio.sleep(0)
        assert not part.done()
        await s.groups.complete(groups[2])
        assert (await part).group_ids == (2,) and not (await part).last
        rest = asyncio.create_task(s.groups.lease(0, on_arrival=True))
        await asyncio.sleep(0)
        assert s.waiting_for == "1 of 2 groups"
        await s.groups.complete(groups[1])
        await s.groups.complete(groups[0])
        assert (await rest).group_ids in ((0,), (1,)) and (await rest).last
        with pytest.raises(RuntimeError, match="has all"):
            await s.groups.lease(0, on_arrival=True)

    run(main)


def test_a_dropped_group_is_forgotten_and_its_batch_is_no_longer_complete():
    async def main():
        s = Setting()
        groups = [await s.finished() for _ in range(2)]
        await s.groups.drop(groups[0].group_id, "surplus")
        assert [row["group_id"] for row in s.groups.buffered()] == [1]
        lease = asyncio.create_task(s.groups.lease(0))
        await asyncio.sleep(0)
        assert s.waiting_for == "1 of 2 groups"
        await s.finished()
        assert (await lease).group_ids == (1, 2)

    run(main)


def test_a_wait_ends_when_a_late_group_fails():
    """The trainer waits for group 0, which would become too stale; then group 0 fails, and the others may go."""

    async def main():
        s = Setting(ratio=0.5)
        slow = await s.start()
        for _ in range(2):
            await s.finished()
        assert s.accounts.bound == 1
        await s.groups.trained(await s.groups.lease(0))
        await s.groups.set_served(1)
        for _ in range(2):
            await s.finished()
        waiting = asyncio.create_task(s.groups.lease(1))
        await asyncio.sleep(0)
        assert "group 0 in flight" in s.waiting_for
        await s.groups.drop(slow.group_id, "reward_error")
        assert (await waiting).group_ids == (3, 4)

    run(main)


def test_groups_that_can_no_longer_be_trained_are_dropped_by_name_and_their_rollouts_cancelled():
    async def main():
        s = Setting(policy="drop")
        old = await s.start()
        rolling = asyncio.create_task(s.groups.while_live(old.group_id, asyncio.Event().wait()))
        for _ in range(2):
            await s.finished()
        for step in range(2):
            await s.groups.trained(await s.groups.lease(step))
            await s.groups.set_served(step + 1)
            for _ in range(2):
                await s.finished()
        assert (await s.groups.lease(2)).group_ids == (5, 6)
        assert [row["group_id"] for row in s.journal.rows if row["reason"] == "stale"] == [0]
        assert await rolling is None
        s.accounts.check()

    run(main)


def test_dropping_is_idempotent_and_a_status_is_final():
    async def main():
        s = Setting()
        group, other, dropped = await s.finished(), await s.finished(), await s.start()
        for _ in range(2):
            await s.groups.drop(dropped.group_id, "reward_error")
        await s.groups.trained(await s.groups.lease(0))
        await s.groups.drop(group.group_id, "surplus")
        assert s.accounts.counts()["dropped"] == {"reward_error": 1} and len(s.journal.rows) == 3
        assert other.group_id == 1

    run(main)


def test_a_group_finishes_once():
    async def main():
        s = Setting()
        group = await s.finished()
        with pytest.raises(AccountingError, match="group 0 was put into the buffer twice"):
            await s.groups.complete(group)

    run(main)


def test_work_for_a_group_ends_with_it():
    async def main():
        s = Setting()
        group, other = await s.start(), await s.start()
        begun, cancelled = asyncio.Event(), asyncio.Event()

        async def rollout():
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        rolling = asyncio.create_task(s.groups.while_live(group.group_id, rollout()))
        await begun.wait()
        await s.groups.drop(group.group_id, "surplus")
        assert await rolling is None and cancelled.is_set()
        assert await s.groups.while_live(group.group_id, rollout()) is None, "nothing begins for a group that is gone"
        assert await s.groups.while_live(other.group_id, asyncio.sleep(0, "done")) == "done"

        async def fails():
            raise ValueError("bad")

        with pytest.raises(ValueError, match="bad"):
            await s.groups.while_live(other.group_id, fails())
        cancelled.clear()
        begun.clear()
        rolling = asyncio.create_task(s.groups.while_live(other.group_id, rollout()))
        await begun.wait()
        rolling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rolling
        await cancelled.wait()
        assert s.groups.is_live(other.group_id), "whoever gives up working has not dropped the group"

    run(main)


def test_after_a_stop_nothing_starts_and_no_step_begins_but_what_was_leased_is_trained():
    async def main():
        s = Setting(ratio=0.0)
        for _ in range(2):
            await s.finished()
        lease = await s.groups.lease(0)
        starting = asyncio.create_task(s.groups.start())
        await asyncio.sleep(0)
        s.groups.stop()
        with pytest.raises(Closed):
            await starting
        await s.groups.trained(lease)
        with pytest.raises(Closed):
            await s.groups.lease(1)

    run(main)


def test_there_is_no_lease_after_the_last_step():
    async def main():
        s = Setting()
        with pytest.raises(Closed):
            await s.groups.lease(10)

    run(main)


def test_a_state_is_json_and_brings_everything_back():
    async def main():
        s = Setting()
        groups = [await s.start() for _ in range(3)]
        for group in groups[::-1][:2]:
            await s.groups.complete(group)
        state, rows = json.loads(json.dumps([s.groups.state(), s.groups.buffered()]))
        assert state["cursor"] == {"served": 3, "again": ["d/0/0"]}, "the task of the group in flight is served again"
        again = Setting()
        again.groups.restore(state, rows)
        assert again.accounts.counts()["buffered"] == 2
        assert (await again.groups.lease(0)).groups == tuple(groups[1:])
        assert (await again.groups.start()).group_id == 3

    run(main)


def test_a_step_that_lacks_fresh_groups_trains_some_again_and_each_use_is_a_row_of_the_journal():
    async def main():
        s = Setting(ratio=2.0, max_reuse=2)
        first, second = [await s.finished() for _ in range(2)]
        await s.groups.trained(await s.groups.lease(0))
        assert [(row["group_id"], row["uses"]) for row in s.groups.buffered()] == [(0, 1), (1, 1)]
        fresh = await s.finished()
        lease = await s.groups.lease(1)
        assert (lease.groups, lease.reuses) == ((first, fresh), 1)
        assert s.accounts.counts()["buffered"] == 1
        await s.groups.trained(lease)
        assert s.accounts.counts() == {
            "admitted": 3, "trained": 3, "reused": 1, "buffered": 0, "in_flight": 0, "dropped": {},
        }  # fmt: skip
        assert [(row["group_id"], row["uses"]) for row in s.groups.buffered()] == [(1, 1), (2, 1)], "0 was trained twice"
        rows = [(row["group_id"], row["status"], row["step"], row["lag"]) for row in s.journal.rows]
        assert rows == [(0, "trained", 1, 0), (1, "trained", 1, 0), (0, "reused", 2, 1), (2, "trained", 2, 1)]
        events = json.loads(f"[{','.join(piece.text for piece in s.trace.files()[0].pieces)}]")
        shown = [e["args"]["status"] for e in events if (e["ph"], e["name"], e["id"]) == ("b", "group", 0)]
        assert shown == ["trained", "reused"]
        assert second.group_id == 1

    run(main)


def test_groups_that_may_be_trained_again_come_back_with_their_uses_and_nobody_keeps_the_others():
    async def main():
        s = Setting(ratio=2.0, max_reuse=2)
        for _ in range(2):
            await s.finished()
        for step in range(2):
            await s.groups.trained(await s.groups.lease(step))
            await s.groups.set_served(step + 1)
            if not step:
                fresh = await s.finished()
        state, rows = json.loads(json.dumps([s.groups.state(), s.groups.buffered()]))
        again = Setting(ratio=2.0, max_reuse=2)
        again.groups.restore(state, rows)
        assert again.accounts.counts() == s.accounts.counts()
        leased = [group.to_json() | {"uses": 1} for group in (await again.groups.lease(2)).groups]
        assert leased == rows and [row["group_id"] for row in rows] == [1, 2]
        smaller = Setting(ratio=2.0, max_reuse=1)
        smaller.groups.restore(state, rows)
        assert smaller.groups.buffered() == [] and fresh.group_id == 2

    run(main)


def test_a_run_that_only_drops_groups_ends_with_the_cause():
    async def main():
        s = Setting(ratio=0.0, most_dropped=3)
        for _ in range(5):
            await s.groups.drop((await s.start()).group_id, "filter_mean_low", "mean reward 0")
        group = await s.start()
        with pytest.raises(NoProgress, match=r"6 groups were dropped .*100 % filter_mean_low \(the last one: mean"):
            await s.groups.drop(group.group_id, "filter_mean_low", "mean reward 0")
        s.accounts.check()

    run(main)
