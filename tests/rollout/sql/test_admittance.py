"""A database is one run's: another run is refused, whoever of it comes, and so is a trainer beside one that is alive."""

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
from database_party import STEPS, B, explore, run

from roll.errors import ContractError, Expelled, TakenBack
from roll.rollout.sql import admittance
from roll.rollout.sql.admittance import Claim, check_may_join, shows_life
from roll.rollout.sql.database import LAYOUT, check_layout, reading
from roll.rollout.sql.tables import members


def other_run(party):
    return replace(party.identity, id="0ther", exp_name="other", folder="/runs/other")


def may_join(party, identity, trains=True, step=0, patience_s=0.5):
    with reading(party.address) as connection:
        check_may_join(connection, party.contract, Claim(identity, trains, step, patience_s))


def test_another_run_is_refused_with_the_owner_how_far_it_is_and_both_ways_on(make_party, monkeypatch):
    monkeypatch.setattr(admittance, "WATCH_S", 0.3)

    async def main():
        party = make_party()
        async with party.joined("explorer") as explorer, party.trainer() as trainer:
            await explore(explorer, B)
            await trainer.trained(await trainer.lease(0))
            for identity in (other_run(party), None):
                with pytest.raises(ContractError) as refusal:
                    await asyncio.to_thread(may_join, party, identity)
                owner = f"running, step 1 of {STEPS}, {B} groups trained; its trainer"
                assert f"that of the run party in /runs/party (begun today on here): {owner}" in str(refusal.value)
                assert "a database of its own" in refusal.value.fix
                assert "output_dir /runs, exp_name party, resume_from_checkpoint: auto" in refusal.value.fix
            party.identity = other_run(party)
            for one in (party.member("second"), party.member("trainer", explores=False, trains=True)):
                with pytest.raises(ContractError, match="that of the run party"):
                    await one.join(party.contract, (0, 0) if one._member.trains else None)
                await one.leave()
            assert party.rows("SELECT branch, trained FROM runs") == [(0, B)]
            assert trainer.admission.counts()["trained"] == B

    run(main())


def test_a_run_knows_its_own_again_wherever_its_folder_is(make_party):
    async def main():
        party = make_party()
        async with party.joined("explorer"):
            pass
        moved = party.identity = replace(party.identity, folder="/moved/party")
        may_join(party, moved)
        async with party.trainer():
            assert "/moved/party" in party.rows("SELECT about FROM runs")[0][0]

    run(main())


@contextmanager
def trainer_of(party, pid, host=None):
    """That has joined, and shows no sign of life but what the test gives it."""
    asyncio.run(_join_and_die(party))
    party.change(f"UPDATE members SET pid = {pid}, host = '{host or socket.gethostname()}'")
    yield


async def _join_and_die(party):
    trainer = party.member("trainer", explores=False, trains=True)
    await trainer.join(party.contract, (0, 0))
    await trainer._database.close()


def test_a_trainer_of_this_machine_that_has_ended_is_followed_at_once(make_party):
    party = make_party()
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with trainer_of(party, process.pid):
        may_join(party, party.identity, patience_s=1e9)
    left = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    left.stdout.read()  # it has ended, and nobody has asked how
    with trainer_of(party, left.pid):
        may_join(party, party.identity, patience_s=1e9)
    left.wait()


def test_a_trainer_that_may_be_alive_is_watched_and_one_that_is_stays(make_party):
    party = make_party()
    for pid, host in ((os.getpid(), None), (1, "elsewhere")):
        with trainer_of(party, pid, host):
            may_join(party, party.identity)

            def beat(_):
                party.change("UPDATE members SET beat = beat + 1")

            with reading(party.address) as connection:
                (row,) = connection.execute(members.select()).all()
                assert shows_life(connection, row, 5, wait=beat) and not shows_life(connection, row, 0)
            party.change("UPDATE members SET beat = 0")


def test_a_trainer_of_the_same_run_that_beats_keeps_another_out(make_party):
    async def main():
        party = make_party()
        async with party.trainer():
            with pytest.raises(ContractError, match="a trainer of this run is alive: process 1 on here") as refusal:
                await asyncio.to_thread(may_join, party, party.identity, patience_s=30)
            assert "end that process first" in refusal.value.fix
            await asyncio.to_thread(may_join, party, party.identity, trains=False)

    run(main(), 40)


def test_a_trainer_without_a_checkpoint_undoes_none(make_party):
    async def main():
        party = make_party()
        async with party.joined("explorer") as explorer, party.trainer() as trainer:
            await explore(explorer, B)
            await trainer.trained(await trainer.lease(0))
        may_join(party, party.identity)  # no checkpoint was made: there is nothing else to go on from
        async with party.trainer() as trainer:
            await trainer.trained(await trainer.lease(0))
            await trainer.saved(1, before=0)
        with pytest.raises(ContractError, match="trained 1 steps, and this process does not go on from its checkpoint of step 1"):
            may_join(party, party.identity)
        may_join(party, party.identity, step=1)

    run(main())


def test_who_is_replaced_or_taken_back_is_told_so(make_party):
    async def main():
        party = make_party()
        first = party.member("trainer", explores=False, trains=True)
        await first.join(party.contract, (0, 0))
        async with party.trainer(), party.joined("explorer"):
            with pytest.raises(Expelled, match="process 1 on here has taken the place of this one as trainer of the run"):
                await first.set_published(1)
        await first._database.close()
        assert str(TakenBack())

    run(main())


def test_explorers_learn_from_the_trainer_how_many_steps_there_are(make_party):
    async def main():
        party = make_party()
        party.steps = 1  # by what the first explorer has to roll out
        async with party.joined("first") as first:
            assert first.admission.max_steps == 1
            party.steps = STEPS
            async with party.trainer():
                await first.until(lambda: first.admission.max_steps == STEPS)
                party.steps = 99
                async with party.joined("second") as second:
                    assert second.admission.max_steps == STEPS

    run(main())


@pytest.mark.parametrize("layout", [LAYOUT - 1, LAYOUT + 1])
def test_tables_of_another_layout_are_refused_by_its_number(make_party, layout):
    async def main():
        party = make_party()
        async with party.joined("explorer"):
            party.change(f"UPDATE runs SET layout = {layout}")
            other = party.member("other")
            with pytest.raises(ContractError, match=f"its tables have layout {layout}, this version has {LAYOUT}"):
                await other.join(party.contract)
            with pytest.raises(ContractError, match=f"have layout {layout}"):
                may_join(party, party.identity)
            with reading(party.address) as connection, pytest.raises(ValueError, match=f"have layout {layout}"):
                check_layout(connection)
            await other._database.close()

    run(main())
