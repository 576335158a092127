"""A database is one run's: another run is refused, whoever of it comes, and so is a trainer beside one that is alive."""

import asyncio
import os
import signal
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from database_party import STEPS, B, Party, explore, run

from roll.core.configs.problems import ConfigError
from roll.core.distributed.processes import Process
from roll.core.errors import ContractError, Expelled, TakenBack
from roll.topologies import shared_groups
from roll.topologies.sql import admittance
from roll.topologies.sql.admittance import Claim, check_may_join
from roll.topologies.sql.connecting import reading
from roll.topologies.sql.database import LAYOUT, check_layout


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


def trainer_of(party, process, state="alive"):
    """That has joined, and shows no sign of life but what the test gives it."""
    asyncio.run(_join_and_die(party))
    party.change(f"UPDATE members SET state = '{state}', host = '{process.host}', pid = {process.pid}, boot = '{process.boot}'")
    party.change(f"UPDATE members SET process_table = '{process.table}', ticks = {process.ticks}")


async def _join_and_die(party):
    trainer = party.member("trainer", explores=False, trains=True)
    await trainer.join(party.contract, (0, 0))
    await trainer._database.close()


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "infinity"])
    yield process
    process.kill()
    process.wait()


def test_a_trainer_of_this_machine_that_has_ended_is_followed_at_once(make_party, sleeper):
    party = make_party()
    here = Process.here(sleeper.pid)
    trainer_of(party, replace(here, ticks=here.ticks - 1))  # its number is another process's by now
    may_join(party, party.identity, patience_s=1e9)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked how
    trainer_of(party, here)
    may_join(party, party.identity, patience_s=1e9)
    sleeper.wait()
    trainer_of(party, here)
    may_join(party, party.identity, patience_s=1e9)


@pytest.mark.parametrize("state", ["alive", "lost"])
def test_a_trainer_of_this_machine_that_is_stopped_is_alive(make_party, sleeper, state):
    party = make_party()
    sleeper.send_signal(signal.SIGSTOP)
    trainer_of(party, Process.here(sleeper.pid), state)
    with pytest.raises(ContractError, match=f"a trainer of this run is alive: process {sleeper.pid} on"):
        may_join(party, party.identity, patience_s=0.0)
    with pytest.raises(ContractError, match="its trainer is"):
        may_join(party, other_run(party))


ELSEWHERE = {
    "cloned machines": {"boot": "another"},
    "pods of one machine": {"table": "pid:[1] time:[1]"},
    "nothing can be read": {"boot": "", "table": "", "ticks": 0},
}


@pytest.mark.parametrize("which", ELSEWHERE)
def test_of_a_trainer_on_another_host_of_the_same_name_only_silence_counts(make_party, monkeypatch, which):
    """Its number is one that is free here, and that of a process that lives here."""
    monkeypatch.setattr(admittance, "WATCH_S", 0.1)
    party = make_party()
    free = subprocess.Popen(["sleep", "0"])
    free.wait()
    for pid in (free.pid, os.getpid()):
        theirs = replace(Process.this(), pid=pid, **ELSEWHERE[which])
        trainer_of(party, theirs)
        may_join(party, party.identity)

        with beating(party), pytest.raises(ContractError, match=r"a trainer of this run is alive|SQLite serves processes of one"):
            may_join(party, party.identity, patience_s=60)


@contextmanager
def beating(party):
    stop = threading.Event()
    thread = threading.Thread(target=beats, args=(party, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def beats(party, stop):
    while not stop.wait(0.05):
        party.change("UPDATE members SET beat = beat + 1")


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


@pytest.fixture
def from_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(admittance, "WATCH_S", 2.0)
    party = Party(f"sqlite:///{tmp_path}/groups.db")
    party.process = replace(Process.this(), host="h0", boot="another")
    return party


def test_an_sqlite_file_is_refused_to_a_process_of_another_machine(from_elsewhere):
    """Before it starts a worker; and when it joins, for all may be started at one moment."""
    party = from_elsewhere

    async def main():
        async with party.joined("explorer"):
            told = r"SQLite serves processes of one machine, and process \d+ on h0"
            with pytest.raises(ContractError, match=told) as refusal, beating(party):
                await asyncio.to_thread(may_join, party, party.identity)
            assert "groups_database: postgresql+psycopg://user@host/name" in refusal.value.fix
            party.process = Process.this()
            other = party.member("trainer", explores=False, trains=True)
            with pytest.raises(ContractError, match="SQLite serves"), beating(party):
                await other.join(party.contract, (0, 0))
            await other.leave()
            assert set(party.rows("SELECT name, state FROM members")) == {("explorer", "alive"), ("trainer", "left")}

    run(main(), 40)


def test_an_sqlite_file_goes_on_where_its_machine_was_booted_again(from_elsewhere):
    """Who took part before gives no sign of life."""
    party = from_elsewhere
    asyncio.run(_join_and_die(party))
    party.process = Process.this()

    async def main():
        await asyncio.to_thread(may_join, party, party.identity)
        async with party.trainer():
            pass

    run(main(), 40)


def test_an_sqlite_file_on_a_network_file_system_is_refused_with_both_ways_on(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_groups, "of_network", lambda file: "nfs4")
    config = SimpleNamespace(member_timeout=60.0)
    with pytest.raises(ConfigError, match=r"lies on a network file system \(nfs4\)") as refusal:
        shared_groups.check_database(config, f"sqlite:///{tmp_path}/groups.db", {}, Claim(None, True))
    assert "sqlite:///<a path on its own disk>; else groups_database: postgresql" in refusal.value.problems[0].fix
