"""A database that an earlier version began: the first process that joins brings it to the present layout."""

import pytest
from database_party import B, explore, run
from sqlalchemy import create_engine, inspect, text

from roll.errors import ContractError, Expelled
from roll.rollout.sql.admittance import Claim, check_may_join
from roll.rollout.sql.database import LAYOUT, check_layout, reading

LAYOUT_1 = """
CREATE TABLE runs (id INTEGER NOT NULL PRIMARY KEY, layout INTEGER NOT NULL, contract TEXT NOT NULL, seq BIGINT NOT NULL,
  branch INTEGER NOT NULL, version INTEGER NOT NULL, newest INTEGER NOT NULL, next_step INTEGER NOT NULL,
  trained INTEGER NOT NULL, depth FLOAT NOT NULL, status VARCHAR(16) NOT NULL, reason TEXT NOT NULL);
CREATE TABLE groups (id INTEGER NOT NULL PRIMARY KEY, seq BIGINT NOT NULL, state VARCHAR(12) NOT NULL, member TEXT NOT NULL,
  task_set VARCHAR(32) NOT NULL, prompt_uid TEXT NOT NULL, domain TEXT NOT NULL, start_version INTEGER NOT NULL,
  oldest_version INTEGER, newest_version INTEGER, samples INTEGER, tokens INTEGER, reward FLOAT, reason TEXT NOT NULL,
  step INTEGER, lag INTEGER, started_at FLOAT NOT NULL, completed_at FLOAT, ended_at FLOAT);
CREATE INDEX groups_by_seq ON groups (seq);
CREATE INDEX groups_by_state ON groups (state);
CREATE TABLE samples (group_id INTEGER NOT NULL PRIMARY KEY, digest VARCHAR(32) NOT NULL, data BLOB NOT NULL);
CREATE TABLE members (name VARCHAR(200) NOT NULL PRIMARY KEY, role VARCHAR(12) NOT NULL, term INTEGER NOT NULL,
  state VARCHAR(8) NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL, beat BIGINT NOT NULL, served INTEGER NOT NULL,
  joined_at FLOAT NOT NULL);
CREATE TABLE tasks (task_set VARCHAR(32) NOT NULL PRIMARY KEY, seq BIGINT NOT NULL, cursor TEXT NOT NULL);
CREATE TABLE validations (version INTEGER NOT NULL PRIMARY KEY, seq BIGINT NOT NULL, member TEXT NOT NULL, result TEXT)
"""
"""What the first version made."""


def made_like_layout_1(party):
    """Of a run of this version, whose tables have the same columns and some more, everything that layout 1 has."""
    new = create_engine(party.address)
    with new.begin() as connection:
        rows = {}
        for statement in LAYOUT_1.strip().split(";"):
            words = statement.split()
            if words[1] == "TABLE":
                connection.execute(text(f"ALTER TABLE {words[2]} RENAME TO new_{words[2]}"))
                rows[words[2]] = [column.strip().split()[0] for column in statement.split("(", 1)[1].split(",")]
            else:
                connection.execute(text(f"DROP INDEX {words[2]}"))
            if new.dialect.name == "postgresql":
                statement = statement.replace("BLOB", "BYTEA").replace("PRIMARY KEY,", "UNIQUE,")
            connection.execute(text(statement))
        for name, columns in rows.items():
            names = ", ".join(columns)
            connection.execute(text(f"INSERT INTO {name} ({names}) SELECT {names} FROM new_{name}"))
            connection.execute(text(f"DROP TABLE new_{name}"))
        connection.execute(text("DROP TABLE replays"))
        connection.execute(text("UPDATE runs SET layout = 1"))


def shape(party):
    """Tables, columns and their types."""
    found = inspect(create_engine(party.address))
    return {
        table: sorted((column["name"], str(column["type"]), column["nullable"]) for column in found.get_columns(table))
        for table in found.get_table_names()
    }


def test_a_run_of_layout_1_goes_on_where_it_stood(make_party):
    async def main():
        party = make_party()
        async with party.joined("explorer") as explorer:
            made = await explore(explorer, 2 * B)
            killed = party.member("trainer", explores=False, trains=True)
            await killed.join(party.contract, (0, 0))
            await killed.trained(await killed.lease(0))
            at = (1, killed.state()["database"]["seq"])
            await killed._database.close()
        expected = shape(party)
        made_like_layout_1(party)
        assert "replays" not in shape(party) and ("replayed", "INTEGER", False) not in shape(party)["runs"]
        with reading(party.address) as connection:
            check_may_join(connection, party.contract, Claim(None, trains=True, step=1))
            with pytest.raises(ValueError, match=f"have layout 1, this version has {LAYOUT}: a process of this version"):
                check_layout(connection)
        party.max_reuse = 2
        async with party.trainer(at) as trainer:
            assert shape(party) == expected
            assert party.rows("SELECT layout, trained, replayed, replaying FROM runs") == [(LAYOUT, B, 0, 0)]
            lease = await trainer.lease(1)
            assert [group.to_json() for group in lease.groups] == [group.to_json() for group in made[B:]]
            await trainer.trained(lease)
            assert trainer.admission.places == 2 * B

    run(main())


def test_of_a_database_that_names_no_run_a_trainer_needs_a_checkpoint(make_party):
    def may_join(trains, step=0):
        with reading(party.address) as connection:
            check_may_join(connection, party.contract, Claim(None, trains, step))

    party = make_party()

    async def main():
        async with party.joined("explorer") as explorer, party.trainer() as trainer:
            await explore(explorer, B)
            await trainer.trained(await trainer.lease(0))
        made_like_layout_1(party)
        party.change("UPDATE runs SET contract = '{\"max_steps\": 9, ' || substr(contract, 2)")
        with pytest.raises(ContractError, match=f"have layout 1, which does not say whose the {B} trained groups are"):
            may_join(trains=True)
        may_join(trains=True, step=1)
        may_join(trains=False)
        async with party.joined("explorer"):
            assert party.rows("SELECT run_id, max_steps FROM runs") == [(party.identity.id, None)]

    run(main())


def test_processes_of_the_earlier_version_that_still_run_are_expelled(make_party):
    async def main():
        party = make_party()
        earlier = party.member("earlier")
        await earlier.join(party.contract)
        uid = (await earlier.start()).prompt.uid
        made_like_layout_1(party)
        async with party.joined("explorer") as explorer:
            assert (await explorer.start()).prompt.uid == uid
            with pytest.raises(Expelled, match="start it again"):
                await earlier.start()
        await earlier._database.close()

    run(main())


def test_a_later_layout_is_refused_by_its_number(make_party):
    async def main():
        party = make_party()
        async with party.joined("explorer"):
            party.change(f"UPDATE runs SET layout = {LAYOUT + 1}")
            other = party.member("other")
            with pytest.raises(ContractError, match=f"its tables have layout {LAYOUT + 1}, this version has {LAYOUT}"):
                await other.join(party.contract)
            await other._database.close()

    run(main())
