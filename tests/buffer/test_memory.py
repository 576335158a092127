"""The in-memory buffer together with the accounts that it serves in a run."""

import asyncio
import json

import pytest

from roll.buffer.memory import MemoryBuffer
from roll.data.sample import Prompt, Sample, SampleGroup, VersionSpan
from roll.rollout.admission import AccountingError, Admission


def run(main):
    asyncio.run(asyncio.wait_for(main(), 5))


class Setting:
    """`ratio` 1 and two groups a step, a clock that the test sets."""

    def __init__(self, ratio=1.0, **options):
        self.now = 0.0
        self.accounts = Admission(2, ratio, max_steps=10, **options)
        self.dropped = []
        self.buffer = MemoryBuffer(self.accounts, self.drop, lambda: self.now)

    def drop(self, group_id, reason):
        self.dropped.append((group_id, reason))
        self.accounts.drop(group_id, reason)
        self.buffer.drop(group_id)

    def start(self):
        ticket = self.accounts.start()
        prompt = Prompt(f"d/0/{ticket.group_id}", [1, 2], "ab", "t", "d", "truth", {"level": 3})
        sample = Sample(prompt, 0, [5, 6], [-0.5, -0.25], [VersionSpan(0, 2, ticket.start_version)], "stop", "xy", 1.0)
        return SampleGroup(ticket.group_id, ticket.start_version, prompt, [sample])


def test_a_lease_waits_says_for_what_and_takes_the_groups_in_the_order_of_admission():
    async def main():
        s = Setting()
        first, second, third = s.start(), s.start(), s.start()
        lease = asyncio.create_task(s.buffer.lease(0))
        await asyncio.sleep(0)
        assert s.buffer.waiting_for == "2 of 2 groups"
        await s.buffer.put(second)
        await asyncio.sleep(0)
        assert s.buffer.waiting_for == "1 of 2 groups" and not lease.done()
        await s.buffer.put(first)
        taken = await lease
        assert taken.step == 0
        assert taken.group_ids == (0, 1)
        assert taken.groups == (first, second)
        assert s.buffer.waiting_for == ""
        await s.buffer.put(third)
        assert s.buffer.stats() == {"buffered": 3, "leased": 2, "waiting_for": ""}

    run(main)


def test_leased_groups_stay_until_they_are_acknowledged():
    async def main():
        s = Setting()
        for _ in range(2):
            await s.buffer.put(s.start())
        lease = await s.buffer.lease(0)
        assert s.accounts.counts()["buffered"] == 2, "a crash now loses nothing"
        assert len(s.buffer.snapshot()) == 2
        await s.buffer.ack(lease)
        assert s.accounts.counts() == {"admitted": 2, "trained": 2, "buffered": 0, "in_flight": 0, "dropped": {}}
        assert s.buffer.snapshot() == []

    run(main)


def test_released_groups_are_leased_again():
    async def main():
        s = Setting()
        for _ in range(2):
            await s.buffer.put(s.start())
        lease = await s.buffer.lease(0)
        with pytest.raises(RuntimeError, match="step 1 asks for groups while step 0 holds its lease"):
            await s.buffer.lease(1)
        await s.buffer.release(lease)
        assert (await s.buffer.lease(0)).groups == lease.groups

    run(main)


def test_slack_is_the_time_a_complete_batch_lay_before_it_was_asked_for():
    async def main():
        s = Setting()
        await s.buffer.put(s.start())
        s.now = 3.0
        await s.buffer.put(s.start())
        s.now = 5.0
        lease = await s.buffer.lease(0)
        assert lease.slack_s == 2.0, "complete at 3, asked for at 5"
        await s.buffer.ack(lease)
        s.accounts.publish(1)
        waiting = asyncio.create_task(s.buffer.lease(1))
        await asyncio.sleep(0)
        for _ in range(2):
            s.now += 1
            await s.buffer.put(s.start())
        s.now += 1  # before the one who waits gets its turn
        assert (await waiting).slack_s == 0.0, "it was awaited"

    run(main)


def test_a_group_that_was_dropped_elsewhere_is_forgotten_and_its_batch_is_no_longer_complete():
    async def main():
        s = Setting()
        groups = [s.start() for _ in range(2)]
        for group in groups:
            await s.buffer.put(group)
        s.drop(groups[0].group_id, "surplus")
        assert [group.group_id for group in s.buffer.groups] == [1]
        lease = asyncio.create_task(s.buffer.lease(0))
        await asyncio.sleep(0)
        assert s.buffer.waiting_for == "1 of 2 groups"
        await s.buffer.put(s.start())
        assert (await lease).group_ids == (1, 2)

    run(main)


def test_a_wait_ends_when_the_accounts_change_elsewhere():
    """The trainer waits for group 0, which would become too stale; then group 0 fails, and the others may go."""

    async def main():
        s = Setting(ratio=0.5)
        slow, *others = (s.start() for _ in range(3))
        for group in others:
            await s.buffer.put(group)
        assert s.accounts.bound == 1
        first = await s.buffer.lease(0)
        await s.buffer.ack(first)
        s.accounts.publish(1)
        for _ in range(2):
            await s.buffer.put(s.start())
        waiting = asyncio.create_task(s.buffer.lease(1))
        await asyncio.sleep(0)
        assert "group 0 in flight" in s.buffer.waiting_for
        s.drop(slow.group_id, "reward_error")
        assert (await waiting).group_ids == (3, 4)

    run(main)


def test_groups_that_can_no_longer_be_trained_are_dropped_by_name():
    async def main():
        s = Setting(policy="drop")
        old = [s.start() for _ in range(3)]
        for group in old[1:]:
            await s.buffer.put(group)
        for step in range(2):
            await s.buffer.ack(await s.buffer.lease(step))
            s.accounts.publish(step + 1)
            for _ in range(2):
                await s.buffer.put(s.start())
        assert (await s.buffer.lease(2)).group_ids == (5, 6)
        assert s.dropped == [(0, "stale")]
        s.accounts.check()

    run(main)


def test_a_group_is_put_once():
    async def main():
        s = Setting()
        group = s.start()
        await s.buffer.put(group)
        with pytest.raises(AccountingError, match="group 0 was put into the buffer twice"):
            await s.buffer.put(group)

    run(main)


def test_a_snapshot_is_json_and_brings_everything_back():
    async def main():
        s = Setting()
        groups = [s.start() for _ in range(3)]
        for group in groups[::-1][:2]:
            await s.buffer.put(group)
        rows = json.loads(json.dumps(s.buffer.snapshot()))
        again = Setting()
        assert again.buffer.restore(rows) == {1: 0, 2: 0}
        assert again.buffer.groups == groups[1:]
        again.accounts.restore(s.accounts.state(), {1: 0, 2: 0})
        assert (await again.buffer.lease(0)).groups == tuple(groups[1:])

    run(main)
