"""A checkpoint's copy of the database: what is restored from it goes on with every group, and each has one terminal status."""

import asyncio

import pytest
from database_party import B, Party, explore, run

from roll.core.errors import DatabaseDamaged, DatabaseFailed, TakenBack
from roll.topologies.sql.connecting import open_engine, reading
from roll.topologies.sql.copying import EMPTY, JournalEnd, differs, restore_copy, write_copy

AT = 1
"""The step of the checkpoint."""
COPY = "copy.db"


def copied(party, trainer, folder, step):
    return asyncio.to_thread(write_copy, party.address, folder / COPY, step, trainer.admission.reuse.oldest_after(step))


async def until_checkpoint(party, folder):
    """A step is trained and the next batch buffered; one group is in flight. Returns the number of the last change that the
    checkpoint knows."""
    async with party.joined("explorer") as explorer, party.trainer() as trainer:
        await explore(explorer, 2 * B)
        lease = await trainer.lease(0)
        await trainer.trained(lease)
        await trainer.set_published(1)
        await explorer.set_served(1)
        await explorer.start()
        known = trainer.state()["database"]["seq"]
        await copied(party, trainer, folder, AT)
        assert [path.name for path in folder.glob(f"{COPY}*")] == [COPY], "a checkpoint has the files of its manifest"
        await trainer.trained(await trainer.lease(1))
        await explore(explorer, 1)
        return known


def forget(party):
    for table in ("groups", "samples", "runs", "members", "tasks"):
        party.change(f"DELETE FROM {table}")


def restore(party, folder):
    engine = open_engine(party.address)
    with engine.begin() as connection:
        restore_copy(connection, folder / COPY)
    engine.dispose()


def test_what_was_buffered_at_the_checkpoint_is_trained_and_what_was_in_flight_is_served_again(make_party, tmp_path):
    async def main():
        party = make_party()
        known = await until_checkpoint(party, tmp_path)
        before = dict(party.rows("SELECT group_id, digest FROM samples"))
        forget(party)
        restore(party, tmp_path)
        copied = dict(party.rows("SELECT group_id, digest FROM samples"))
        assert copied == {group: before[group] for group in range(B, 2 * B)}, "those of the buffer, and no others"
        async with party.trainer((AT, known)) as trainer, party.joined("explorer") as explorer:
            assert [group.group_id for group in (await trainer.lease(1)).groups] == [2, 3]
            assert (await explorer.start()).prompt.uid == "d/0/4", "the prompt that was in flight"
            assert [(row["group_id"], row["status"]) for row in trainer._journal.rows] == [(4, "dropped")]

    run(main())


def test_a_driver_serves_the_version_of_its_checkpoint_though_the_database_does_not_know_it(make_party):
    """As of the moment between a checkpoint and the publication of its version."""

    async def main():
        party = make_party()
        driver = {"explores": True, "trains": True}
        async with party.joined("driver", trainer_at=(0, 0), **driver) as groups:
            await explore(groups, B + 1)
            await groups.trained(await groups.lease(0))
            known = groups.state()["database"]["seq"]
        async with party.joined("driver", trainer_at=(AT, known), **driver) as groups:
            assert (groups.admission.version, groups.admission.newest) == (1, 1)
            await explore(groups, 2 * B - 1)
            assert [group.group_id for group in (await groups.lease(1)).groups] == [2, 3]

    run(main())


def test_a_process_that_took_part_begins_anew(make_party, tmp_path):
    async def main():
        party = make_party()
        await until_checkpoint(party, tmp_path)
        explorer = party.member("explorer")
        await explorer.join(party.contract)
        restore(party, tmp_path)
        with pytest.raises(TakenBack):
            await explorer.start()
        await explorer.leave()

    run(main())


def test_samples_are_copied_while_others_write(make_party, tmp_path):
    async def main():
        party = make_party(ratio=3.0)
        async with party.joined("explorer") as explorer, party.trainer() as trainer:
            await explore(explorer, B)
            await asyncio.gather(copied(party, trainer, tmp_path, 0), explore(explorer, 2 * B))
        forget(party)
        restore(party, tmp_path)
        buffered = party.rows("SELECT id FROM groups WHERE state = 'buffered'")
        assert len(buffered) >= B and set(buffered) == set(party.rows("SELECT group_id FROM samples"))

    run(main())


def test_a_process_whose_file_was_set_aside_writes_no_more(tmp_path):
    async def main():
        party = Party(f"sqlite:///{tmp_path}/groups.db")
        explorer = party.member("explorer")
        await explorer.join(party.contract)
        (tmp_path / "groups.db").rename(tmp_path / "damaged-1-groups.db")
        for _ in range(2):
            with pytest.raises(DatabaseFailed, match="start it again"):
                await explorer.start()
            (tmp_path / "groups.db").touch()

    run(main())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("UPDATE runs SET seq = seq", ""),
        ("UPDATE runs SET seq = 1", "it has 1 changes, the checkpoint knows"),
        ("DELETE FROM runs", EMPTY),
        ("DROP TABLE runs", EMPTY),
        ("UPDATE groups SET step = 2 WHERE id = 1", "group 1 is trained (step 2) there, and is trained (step 1) in groups.jsonl"),
        ("DELETE FROM groups WHERE id = 0", "group 0 is unknown there, and is trained (step 1) in groups.jsonl"),
    ],
)
def test_a_database_that_is_not_the_checkpoints_is_known(make_party, tmp_path, change, why):
    party = make_party()
    known = asyncio.run(until_checkpoint(party, tmp_path))
    party.change(change)
    with reading(party.address) as connection:
        found = differs(connection, known, {0: JournalEnd("trained", 1), 1: JournalEnd("trained", 1)})
    assert found.startswith(why) and bool(found) == bool(why)


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: bytes(100) + data[100:]], ids=["cut", "header"]
)
def test_a_file_that_is_no_whole_database_is_told_from_one_that_is_not_there(tmp_path, damage):
    party = Party(f"sqlite:///{tmp_path}/groups.db")
    known = asyncio.run(until_checkpoint(party, tmp_path))
    file = tmp_path / "groups.db"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DatabaseDamaged), reading(party.address) as connection:
        if why := differs(connection, known, {}):
            raise DatabaseDamaged(why)
