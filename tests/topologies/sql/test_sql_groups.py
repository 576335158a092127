"""Groups in a database: several owners, each with a connection of its own as processes have, agree on every group."""

import asyncio
import itertools
import json
import random
import time
from collections import Counter

import numpy as np
import pytest
from database_party import STEPS, B, Party, explore, follow, roll_out, run

from roll.core.data.extras import Extras
from roll.core.data.sample import Sample, VersionSpan
from roll.core.data.taught import TeacherAnswer
from roll.core.errors import Closed, ContractError, DatabaseFailed, Expelled, TakenBack
from roll.topologies.sql.joining import Leave


def test_what_an_explorer_completes_a_trainer_of_another_process_trains_to_the_last_bit(make_party):
    async def main():
        party = make_party()
        async with party.joined("explorer") as explorer, party.trainer() as trainer:
            made = await explore(explorer, B)
            lease = await trainer.lease(0)
            assert [group.to_json() for group in lease.groups] == [group.to_json() for group in made]
            await trainer.trained(lease)
            rows = trainer._journal.rows
            assert [(row["group_id"], row["status"], row["step"], row["lag"]) for row in rows] == [
                (0, "trained", 1, 0),
                (1, "trained", 1, 0),
            ]
            await explorer.until(lambda: explorer.admission.trained == B)
            assert explorer.admission.counts() == trainer.admission.counts()

    run(main())


def test_an_explorer_that_begins_first_stops_at_the_bound_and_goes_on_when_versions_come(make_party):
    async def main():
        party = make_party()
        async with party.joined("explorer") as explorer:
            await explore(explorer, 2 * B)
            more = asyncio.create_task(explorer.start())
            async with party.trainer() as trainer:
                lease = await trainer.lease(0)
                await trainer.trained(lease)
                await trainer.set_published(1)
                await explorer.until(lambda: explorer.admission.newest == 1)
                assert not more.done(), "version 1 is published and not served"
                await explorer.set_served(1)
                assert (await more).start_version == 1
                await trainer.until(lambda: trainer.admission.version == 1)

    run(main())


def test_two_explorers_share_one_epoch_and_the_oldest_version_bounds_both(make_party):
    async def main():
        party = make_party()
        async with party.joined("a") as a, party.joined("b") as b, party.trainer() as trainer:
            first, second = await explore(a, 1), await explore(b, 1)
            third, fourth = await explore(a, 1), await explore(b, 1)
            uids = [group.prompt.uid for group in (*first, *second, *third, *fourth)]
            assert uids == ["d/0/0", "d/0/1", "d/0/2", "d/0/3"]
            await trainer.trained(await trainer.lease(0))
            await trainer.set_published(1)
            await a.set_served(1)
            assert a.admission.version == 0, "b still serves version 0"
            await b.set_served(1)
            assert b.admission.version == 1

    run(main())


def test_the_tasks_of_an_explorer_that_died_are_served_again_by_another(make_party):
    async def main():
        party = make_party()
        dead = party.member("dead")
        await dead.join(party.contract)
        lost = [(await dead.start()).prompt.uid for _ in range(2)]
        async with party.joined("alive") as alive:
            other = (await alive.start()).prompt.uid
            await party.pass_time(16, alive)  # `alive` shows signs of life at every look, `dead` does not
            await alive.until(lambda: alive.admission.dropped["explorer_lost"] == 2)
            assert [(await alive.start()).prompt.uid for _ in range(2)] == lost
            assert other not in lost
        with pytest.raises(Expelled, match="dead was taken for dead"):
            await dead.start()
        await dead._database.close()

    run(main())


def test_an_explorer_that_is_started_again_takes_the_place_of_the_one_that_was_killed(make_party):
    async def main():
        party = make_party()
        killed = party.member("explorer")
        await killed.join(party.contract)
        uid = (await killed.start()).prompt.uid
        await killed._database.close()
        async with party.joined("explorer") as again:
            group = await again.start()
            assert (group.prompt.uid, group.group_id) == (uid, 1)
            assert again.admission.counts()["dropped"] == {"explorer_lost": 1}

    run(main())


def test_a_trainer_that_goes_on_from_a_checkpoint_trains_the_same_groups_again(make_party):
    async def main():
        party = make_party()
        async with party.joined("explorer") as explorer:
            await explore(explorer, 2 * B)
            killed = party.member("trainer", explores=False, trains=True)
            await killed.join(party.contract, (0, 0))
            first = await killed.lease(0)
            await killed.trained(first)
            at = killed.state()["database"]["seq"]
            second = await killed.lease(1)
            await killed.trained(second)
            await killed._database.close()
            async with party.trainer((1, at)) as again:
                lease = await again.lease(1)
                assert [g.to_json() for g in lease.groups] == [g.to_json() for g in second.groups]
                await again.trained(lease)
                assert [row["group_id"] for row in again._journal.rows] == [2, 3], "rows after the checkpoint, once each"

    run(main())


def test_a_checkpoint_counts_the_groups_whose_statuses_the_journal_has(make_party, monkeypatch):
    """While a transaction that drops a group is being committed, the accounts are already changed and the journal is not."""

    async def main():
        party = make_party()
        async with party.joined("driver", trainer_at=(0, 0), explores=True, trains=True) as groups:
            group, seen = await groups.start(), []
            commit = groups._database.commit

            async def watched(statements):
                await commit(statements)
                if statements:  # a sign of life has none
                    seen.append((groups.admission.dropped.total(), groups.state(), len(groups._journal.rows)))

            monkeypatch.setattr(groups._database, "commit", watched)
            await groups.drop(group.group_id, "some reason")
            changed, saved, written = seen[0]
            assert (changed, sum(saved["admission"]["dropped"].values()), written) == (1, 0, 0)
            assert groups.state()["admission"]["dropped"] == {"some reason": len(groups._journal.rows)}
            assert groups.state()["database"]["seq"] > saved["database"]["seq"]

    run(main())


def test_what_versions_sampled_that_are_gone_is_dropped_and_its_tasks_are_served_again(make_party):
    async def main():
        party = make_party()
        explorer = party.member("explorer")
        await explorer.join(party.contract)
        await explore(explorer, 2 * B)
        killed = party.member("trainer", explores=False, trains=True)
        await killed.join(party.contract, (0, 0))
        for step in range(2):
            await killed.trained(await killed.lease(step))
            await killed.set_published(step + 1)
        await explorer.set_served(2)
        (of_version_2,) = await explore(explorer, 1)
        await killed._database.close()
        async with party.trainer((1, killed.state()["database"]["seq"])) as again:
            assert (again.admission.trained, again.admission.newest) == (B, 1)
            with pytest.raises(TakenBack):
                await explorer.start()
            await explorer._database.close()
            async with party.joined("explorer") as explorer:
                assert explorer.admission.dropped["rolled_back"] == 1
                assert (await explorer.start()).prompt.uid == of_version_2.prompt.uid
            assert len((await again.lease(1)).groups) == B

    run(main())


def test_damaged_samples_cost_their_group_alone(make_party):
    async def main():
        party = make_party()
        async with party.joined("explorer") as explorer:
            made = await explore(explorer, 2 * B)
            party.change("UPDATE samples SET data = (SELECT data FROM samples WHERE group_id = 1) WHERE group_id = 0")
            async with party.trainer() as trainer:
                lease = await trainer.lease(0)
                assert lease.group_ids == (1, 2)
                assert trainer.admission.dropped == {"damaged": 1}
                group = await explorer.start()
                assert group.prompt.uid == made[0].prompt.uid

    run(main())


def test_groups_are_trained_again_where_fresh_ones_lack_and_every_process_counts_their_places(make_party):
    async def main():
        party = make_party()
        party.max_reuse = 2
        async with party.joined("explorer") as explorer, party.trainer() as trainer:
            made = await explore(explorer, B)
            await trainer.trained(await trainer.lease(0))
            await trainer.set_published(1)
            await explorer.until(lambda: explorer.admission.newest == 1)
            (fresh,) = await explore(explorer, 1)
            await explorer.set_served(1)
            again = await trainer.lease(1)
            assert [group.to_json() for group in again.groups] == [group.to_json() for group in (made[0], fresh)]
            await explorer.until(lambda: explorer.admission.reuse.under_way == 1)
            for _ in range(2):  # two places are done, a reuse is under way, and one group is outstanding: two more make six
                assert explorer.admission.may_start()
                await explorer.start()
            assert not explorer.admission.may_start()
            await trainer.trained(again)
            rows = [(row["group_id"], row["status"], row["step"], row["lag"]) for row in trainer._journal.rows]
            assert rows == [(0, "trained", 1, 0), (1, "trained", 1, 0), (0, "reused", 2, 1), (2, "trained", 2, 1)]
            assert party.rows("SELECT group_id, step, lag FROM reuses") == [(0, 2, 1)]
            await explorer.until(lambda: explorer.admission.reuse.done == 1)
            assert explorer.admission.counts() == trainer.admission.counts()
            assert explorer.admission.places == 2 * B

    run(main())


def test_what_teachers_said_comes_back_with_a_group_that_is_trained_again_by_another_process_too(make_party):
    async def main():
        party = make_party(3.0)
        party.max_reuse = 3
        async with party.joined("explorer") as explorer:
            await explore(explorer, B)
            async with party.trainer() as trainer:
                lease = await trainer.lease(0)
                for sample in lease.groups[0].samples:
                    count = len(sample.response_ids)
                    said = np.full(count, -1 / 3, np.float32), np.full((count, 2), 7, np.int32), np.ones((count, 2), np.float32)
                    sample.extras = Extras(taught=TeacherAnswer("teachers.big", *said))
                told = [group.to_json() for group in lease.groups]
                await trainer.trained(lease)
                again = await trainer.lease(1)
                assert [group.to_json() for group in again.groups] == told
                await trainer.trained(again)
                at = (2, trainer.state()["database"]["seq"])
            async with party.trainer(at) as another:
                assert [group.to_json() for group in (await another.lease(2)).groups] == told

    run(main())


def test_a_trainer_that_goes_on_from_a_checkpoint_takes_later_reuses_back(make_party):
    """Two steps have trained groups 0 and 1, and two more groups 2 and 3; the checkpoint is that of 1, 2 or 3 steps."""

    async def main(step):
        party = make_party(3.0)
        party.max_reuse = 2
        async with party.joined("explorer") as explorer:
            await explore(explorer, B)
            killed = party.member("trainer", explores=False, trains=True)
            await killed.join(party.contract, (0, 0))
            attending = asyncio.create_task(killed.keep_in_sync())
            trained = []
            at = {0: (0, 0)}
            for number in range(4):
                trained.append((lease := await killed.lease(number)).group_ids)
                await killed.trained(lease)
                at[number + 1] = (number + 1, killed.state()["database"]["seq"])
                if number == 1:
                    await explorer.until(lambda: explorer.admission.places == 2 * B)
                    await explore(explorer, B)
            assert trained == [(0, 1), (0, 1), (2, 3), (2, 3)]
            attending.cancel()
            await asyncio.wait([attending])
            await killed._database.close()
            async with party.trainer(at[step]) as again:
                assert again.admission.places == step * B and again.admission.reuse.under_way == 0
                for number in range(step, 4):
                    await again.trained(await again.lease(number))
                rows = [(row["group_id"], row["status"], row["step"]) for row in again._journal.rows]
                assert rows == [(i, status, number) for number, status, ids in goes_on[step] for i in ids]
                reuses = party.rows("SELECT group_id, step FROM reuses ORDER BY 2, 1")
                before = [(0, 2), (1, 2)] if step > 1 else []
                assert reuses == before + [
                    (i, number) for number, status, ids in goes_on[step] if status == "reused" for i in ids
                ]

    goes_on = {
        1: [(2, "trained", (2, 3)), (3, "reused", (0, 1)), (4, "reused", (2, 3))],  # 2 and 3 are there already
        2: [(3, "trained", (2, 3)), (4, "reused", (2, 3))],
        3: [(4, "reused", (2, 3))],
    }
    for step in goes_on:
        run(main(step))


def test_a_group_whose_samples_are_damaged_is_not_trained_again(make_party):
    async def main():
        party = make_party()
        party.max_reuse = 2
        async with party.joined("explorer") as explorer, party.trainer() as trainer:
            await explore(explorer, B)
            await trainer.trained(await trainer.lease(0))
            party.change("DELETE FROM samples WHERE group_id = 0")
            (fresh,) = await explore(explorer, 1)
            assert (await trainer.lease(1)).group_ids == (1, fresh.group_id)
            assert trainer.admission.dropped.total() == 0

    run(main())


def test_a_process_with_other_figures_is_refused(make_party):
    async def main():
        party = make_party()
        async with party.joined("explorer"):
            party.contract = party.contract | {"async_generation_ratio": 2.0}
            other = party.member("other")
            with pytest.raises(ContractError, match=r"begun with async_generation_ratio: 1.0, here it is 2.0"):
                await other.join(party.contract)
            await other._database.close()

    run(main())


def test_samples_stay_until_a_checkpoint_has_what_they_taught(make_party):
    async def main():
        party = make_party()
        async with party.joined("explorer") as explorer, party.trainer() as trainer:
            await explore(explorer, 2 * B)
            await trainer.trained(await trainer.lease(0))
            assert party.rows("SELECT count(*) FROM samples") == [(4,)]
            await trainer.saved(2, before=1)
            assert party.rows("SELECT group_id FROM samples ORDER BY 1") == [(2,), (3,)]

    run(main())


def test_samples_stay_as_long_as_their_group_may_be_trained_again(make_party):
    async def main():
        party = make_party()
        party.max_reuse = 2
        async with party.joined("explorer") as explorer, party.trainer() as trainer:
            await explore(explorer, B)
            await trainer.trained(await trainer.lease(0))
            await trainer.saved(2, before=1)
            assert party.rows("SELECT count(*) FROM samples") == [(B,)], "a trainer that goes on from step 1 may want them"
            await trainer.trained(await trainer.lease(1))
            await trainer.saved(3, before=2)
            assert party.rows("SELECT count(*) FROM samples") == [(0,)], "step 2 is beyond their deadline"

    run(main())


def test_explorers_end_when_the_trainer_says_that_the_run_has(make_party):
    async def main():
        party = make_party()
        async with party.joined("explorer") as explorer, party.trainer() as trainer:
            await explore(explorer, 2 * B)
            waiting = asyncio.create_task(explorer.start())
            await trainer.announce_end("finished")
            with pytest.raises(Closed):
                await waiting

    run(main())


def test_a_transaction_that_changes_nothing_hides_nothing_that_others_change(make_party):
    async def main():
        party = make_party()
        async with party.joined("a") as a, party.joined("b") as b:
            await a.drop(7, "never began")
            group = await b.start()
            await a.until(lambda: a.is_live(group.group_id))

    run(main())


def test_a_process_that_shows_signs_of_life_again_is_not_taken_for_dead(make_party):
    async def main():
        party = make_party()
        async with party.joined("a") as a, party.joined("b") as b:
            group = await b.start()
            await a._database.write(Leave("b", "lost", (1, -1)))
            assert party.rows("SELECT state FROM members WHERE name = 'b'") == [("alive",)]
            await b.complete(roll_out(group))
            assert a.admission.dropped.total() == 0

    run(main())


def test_one_explorer_validates_a_version_and_another_takes_over_if_it_leaves(make_party):
    async def main():
        party = make_party()
        async with party.trainer() as trainer, party.joined("b") as b:
            async with party.joined("a") as a:
                assert await a.claims_validation(3)
                assert not await b.claims_validation(3)
            assert await b.claims_validation(3)
            await b.report_validation(3, {"accuracy": 0.5})
            assert not await b.claims_validation(3)
            await trainer.until(lambda: trainer.known >= b.known)
            known, results = await trainer.validation_results(0)
            assert results == [{"accuracy": 0.5}] and await trainer.validation_results(known) == (known, [])

    run(main())


def test_a_process_that_ends_before_it_took_part_says_nothing(tmp_path):
    async def main():
        groups = Party(f"sqlite:///{tmp_path}/groups.db").member("trainer", explores=False, trains=True)
        await groups.announce_end("failed", "no worker could start")
        await groups.leave()
        assert not (tmp_path / "groups.db").exists()

    run(main())


def test_a_statement_that_fails_is_one_line_and_can_be_tried_again(tmp_path):
    async def main():
        party = Party(f"sqlite:///{tmp_path}/groups.db")
        async with party.joined("explorer") as explorer:
            group = roll_out(await explorer.start())
            party.change("CREATE TRIGGER full BEFORE INSERT ON samples BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END")
            with pytest.raises(DatabaseFailed, match=r"groups.db: database or disk is full$"):
                await explorer.complete(group)
            party.change("DROP TRIGGER full")
            await explorer.complete(group)
            assert explorer.admission.counts()["buffered"] == 1

    run(main())


def test_a_transaction_that_fails_leaves_no_trace(make_party):
    async def main():
        party = make_party()
        async with party.joined("explorer") as explorer:
            group = await explorer.start()
            group.samples = [Sample(group.prompt, 0, [5], [float("nan")], [VersionSpan(0, 1, 0)], "stop", "x", float("nan"))]
            with pytest.raises(ValueError, match="not JSON compliant"):
                await explorer.complete(group)
            assert explorer.is_live(group.group_id)
            await explorer.drop(group.group_id, "reward_error")
            assert json.loads(json.dumps(explorer.admission.counts()))["dropped"] == {"reward_error": 1}
            assert party.rows("SELECT state FROM groups") == [("dropped",)]

    run(main())


def test_what_a_look_has_seen_of_a_later_change_is_not_told_to_the_journal_twice(make_party):
    """A look reads one table after the other; others commit meanwhile."""

    async def main():
        party = make_party()
        async with party.joined("explorer") as explorer:
            trainer = party.member("trainer", explores=False, trains=True)
            await trainer.join(party.contract, (0, 0))
            group = await explorer.start()
            await trainer._look()
            before = trainer.known
            await explorer.drop(group.group_id, "filter")
            news = await trainer._database.outside(trainer._news)
            trainer._learn(news, known=before)
            assert [row["status"] for row in trainer._journal.rows] == ["dropped"]
            trainer._stale = True  # as after a transaction that was lost
            await trainer.set_published(1)
            assert [row["status"] for row in trainer._journal.rows] == ["dropped"] and trainer.known > before
            await trainer.leave()

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "max_reuse"), [(0, 1), (1, 1), (2, 1), (3, 2), (4, 3)])
def test_whatever_explorers_and_trainers_come_and_go_every_task_and_every_group_is_accounted_for(make_party, seed, max_reuse):
    """Explorers of random speed that are killed and come back, a trainer that is killed and goes on from its checkpoint."""
    dice = random.Random(seed)
    trained_at = {}

    async def roll_out_some(groups):
        for _ in range(dice.randint(1, 5)):
            group = await groups.start()
            await asyncio.sleep(0)
            if dice.random() < 0.2:
                await groups.drop(group.group_id, "filter")
            else:
                await groups.complete(roll_out(group))

    async def explorer(party, name):
        while True:
            groups = party.member(name)
            await groups.join(party.contract)
            work = [asyncio.create_task(each) for each in (roll_out_some(groups), groups.keep_in_sync(), follow(groups))]
            done, rest = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for task in rest:
                task.cancel()
            await asyncio.wait(work)
            await groups._database.close()  # killed: nothing is said to the others
            error = done.pop().exception()
            if isinstance(error, Closed):
                return
            assert error is None or isinstance(error, TakenBack), error

    async def trainer(party):
        at = (0, 0)
        while at[0] < STEPS:
            groups = party.member("trainer", explores=False, trains=True, step=at[0])
            await groups.join(party.contract, at)
            attending = asyncio.create_task(groups.keep_in_sync())
            step = at[0]
            while step < STEPS:
                lease = await groups.lease(step)
                await groups.trained(lease)
                assert all(step - group.start_version <= party.ratio for group in lease.groups)
                step += 1
                trained_at[step] = [group.prompt.uid for group in lease.groups]
                await groups.set_published(step)
                if dice.random() < 0.5:
                    at = (step, groups.state()["database"]["seq"])
                elif dice.random() < 0.5:
                    break
            else:
                await groups.announce_end("finished")
                at = (STEPS, 0)
            attending.cancel()
            await asyncio.wait([attending])
            await groups._database.close()

    async def main():
        party = make_party(float(max_reuse))
        party.max_reuse = max_reuse
        await asyncio.gather(trainer(party), explorer(party, "a"), explorer(party, "b"))
        statuses = party.rows("SELECT prompt_uid, state, reason FROM groups")
        taught = [uid for uid, state, _ in statuses if state == "trained"]
        uses = Counter(uid for uids in trained_at.values() for uid in uids)
        assert len(taught) == len(set(taught)) and uses.total() == STEPS * B
        assert set(taught) == set(uses) and max(uses.values()) <= max_reuse
        assert party.rows("SELECT count(*) FROM reuses") == [(STEPS * B - len(taught),)]
        assert max_reuse > 1 or len(taught) == STEPS * B
        # Each task that was drawn has one group that was trained, filtered or is left over; lost ones were given back.
        ends = [uid for uid, state, reason in statuses if not (state == "dropped" and reason in ("explorer_lost", "rolled_back"))]
        assert len(ends) == len(set(ends))
        ((cursor,),) = party.rows("SELECT cursor FROM tasks")
        cursor = json.loads(cursor)
        assert set(ends) | set(cursor["returned"]) == {f"d/0/{i}" for i in range(cursor["served"])}

    run(main(), 60)


def test_a_clock_that_jumps_back_and_forth_changes_nothing_but_what_is_shown(make_party, monkeypatch):
    """Life signs are counted, and compared by a clock that cannot be set."""
    hours = itertools.cycle([0.0, 3.6e4, -3.6e4, 7.2e6])
    began = time.time()
    monkeypatch.setattr(time, "time", lambda: began + next(hours))

    async def play():
        party = make_party()
        async with party.trainer() as trainer, party.joined("one") as one, party.joined("two") as two:
            following = [asyncio.create_task(follow(explorer)) for explorer in (one, two)]
            for step in range(STEPS):
                await asyncio.gather(explore(one, 1), explore(two, 1))
                await trainer.trained(await trainer.lease(step))
                await trainer.set_published(step + 1)
            assert {row.name for row in party.rows("SELECT name FROM members WHERE state = 'alive'")} == {"trainer", "one", "two"}
            await trainer.announce_end("finished", "")
            for task in following:
                task.cancel()
        assert dict(party.rows("SELECT state, count(*) FROM groups GROUP BY state")) == {"trained": B * STEPS}

    run(play())
