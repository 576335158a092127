"""A PostgreSQL server that goes away in any moment, and connections that end or stand still: nothing is lost, nothing doubled,
and nobody waits for somebody who is not there."""

import asyncio
import shutil
import time

import postgres
import psycopg
import pytest
from database_party import B, Party, explore, follow, roll_out, run

from roll.core.errors import Alone, DatabaseFailed
from roll.topologies.sql.admittance import LifeSigns
from roll.topologies.sql.connecting import Limits, arguments_of, open_engine, url_of
from roll.topologies.sql.outage import Outage

STEPS, LONG = 4, 40
COMMIT = b"COMMIT\0"
"""And not BEGIN ISOLATION LEVEL READ COMMITTED."""
SOON_S = 15.0
"""Others go on after so long at the latest, with the usual `member_timeout` of 60 s."""


def through(party, proxy, name):
    party.ways[name] = party.address.replace(party.address.split("@")[1].split("/")[0], f"127.0.0.1:{proxy.port}")


async def whole_run(party, steps=STEPS):
    """A trainer and an explorer from the first group to the end, with every verb."""
    async with party.trainer() as trainer, party.joined("explorer") as explorer:
        following = asyncio.create_task(follow(explorer))

        async def trains():
            for step in range(steps):
                lease = await trainer.lease(step)
                await trainer.trained(lease)
                await trainer.observe_step(1.0, 1.0, 0.0, 0.0, None)
                await trainer.set_published(step + 1)
                await trainer.saved(step + 1, step)

        async def explores():
            for number in range(steps * B + 1):
                group = await explorer.start()
                await explorer.complete(roll_out(group))
                if number % B == 0 and await explorer.claims_validation(number // B):
                    await explorer.report_validation(number // B, {"accuracy": 0.5})

        await asyncio.gather(trains(), explores())
        await explorer.until(lambda: explorer.admission.newest == steps)
        following.cancel()
        await trainer.drop_all("surplus")
        await trainer.announce_end("finished")
    return trainer


def is_whole(party, trainer, steps=STEPS):
    """Every group has one terminal status, in the table and in the journal, and every task was served once."""
    stored = dict(party.rows("SELECT id, state FROM groups"))
    statuses = {row["group_id"]: row["status"] for row in trainer._journal.rows}
    assert len(statuses) == len(trainer._journal.rows) and statuses == stored
    assert list(stored.values()).count("trained") == steps * B and set(stored) == set(range(len(stored)))
    tasks = [uid for (uid,) in party.rows("SELECT prompt_uid FROM groups WHERE state = 'trained'")]
    assert len(set(tasks)) == len(tasks)
    assert party.rows("SELECT next_step, trained, newest, saved, status FROM runs") == [
        (steps, steps * B, steps, steps, "finished")
    ]
    assert len(party.rows("SELECT version FROM validations WHERE result IS NOT NULL")) == steps + 1


@pytest.mark.parametrize("what", ["swallow", "close"])
@pytest.mark.parametrize("name", ["trainer", "explorer"])
def test_a_commit_whose_answer_is_lost_counts_once(fragile, proxies, name, what):
    """Every third of them: `swallow` comes after the server has committed, `close` before."""
    proxy = proxies()
    through(fragile, proxy, name)
    count = [0]

    def rule(data):
        count[0] += COMMIT in data
        if COMMIT in data and count[0] > 3 and count[0] % 3 == 0:
            proxy.seen += 1
            return what
        return ""

    async def main():
        proxy.rule = rule
        trainer = await whole_run(fragile)
        proxy.forward()
        is_whole(fragile, trainer)

    run(main(), 100)
    assert proxy.seen >= 6


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_that_is_restarted_costs_a_moment(fragile, own_server, mode, caplog):
    """As an upgrade does it, and as its end by a signal."""

    async def main():
        async def restarts():
            for _ in range(3):
                before = fragile.rows("SELECT seq FROM runs")[0][0]
                await asyncio.to_thread(own_server.stop, mode)
                await asyncio.to_thread(own_server.start)
                while fragile.rows("SELECT seq FROM runs")[0][0] < before + 4:
                    await asyncio.to_thread(fragile.rows, "SELECT pg_sleep(0.05)")

        fragile.steps = LONG + 2
        playing = asyncio.create_task(whole_run(fragile, LONG))
        while not has_begun(fragile):
            await asyncio.to_thread(time.sleep, 0.05)
        await restarts()
        trainer = await playing
        is_whole(fragile, trainer, LONG)

    run(main(), 100)
    told = [record.getMessage() for record in caplog.records]
    assert any("trying again until the database is there (peer_timeout)" in line for line in told)
    assert any("the database is there again after" in line for line in told)


IN_A_TRANSACTION = {
    "the next statement does not come": b"UPDATE groups",
    "nor does the commit": COMMIT,
    "nor does the beat's": b"UPDATE members SET beat",
    "the samples do not come": b"INSERT INTO samples",
    "the group does not come": b"INSERT INTO groups",
    "it has its number": b"FROM members",
}


@pytest.mark.parametrize("which", IN_A_TRANSACTION)
def test_a_process_whose_cable_is_pulled_in_a_transaction_keeps_nobody_waiting(fragile, proxies, which):
    proxy = proxies()
    through(fragile, proxy, "cut")

    async def main():
        async with fragile.joined("other", timeout=60.0) as other, fragile.trainer():
            cut = fragile.member("cut", timeout=60.0)
            await cut.join(fragile.contract)
            attending = asyncio.create_task(cut.keep_in_sync())
            proxy.on(IN_A_TRANSACTION[which], "stall")
            exploring = asyncio.create_task(explore(cut, 1))
            while not proxy.seen:
                await asyncio.to_thread(time.sleep, 0.01)
            began = time.monotonic()
            await explore(other, 1)
            assert time.monotonic() - began < SOON_S
            proxy.forward()
            (group,) = await exploring
            assert cut.is_live(group.group_id)
            attending.cancel()
            await asyncio.wait([attending])
            await cut.leave()
        assert fragile.rows("SELECT state, count(*) FROM groups GROUP BY state") == [("buffered", 2)]

    run(main(), 60)


def test_a_process_that_is_stopped_in_a_transaction_keeps_nobody_waiting(fragile):
    async def main():
        async with fragile.joined("other", timeout=60.0) as other:
            stopped = fragile.member("stopped", timeout=60.0)
            await stopped.join(fragile.contract)
            await stopped._database.begin(stopped._begin)
            began = time.monotonic()
            await explore(other, 1)
            assert time.monotonic() - began < SOON_S
            await explore(stopped, 1)  # its turn again: the server has ended what it held
            await stopped.leave()

    run(main(), 60)


def test_samples_behind_a_slow_link_are_read_and_written_outside_of_transactions(fragile, proxies):
    """While their bytes are on their way, and none is answered, others have their turn."""
    proxy = proxies()
    through(fragile, proxy, "trainer")

    async def main():
        async with fragile.joined("explorer", timeout=60.0) as explorer, fragile.trainer() as trainer:
            await explore(explorer, B)
            proxy.on(b"FROM samples", "stall")
            leasing = asyncio.create_task(trainer.lease(0))
            while not proxy.seen:
                await asyncio.to_thread(time.sleep, 0.01)
            held = fragile.rows("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'")
            began = time.monotonic()
            await explore(explorer, 1)
            assert held == [(0,)] and time.monotonic() - began < 1.0
            proxy.forward()
            assert len((await leasing).groups) == B

    run(main(), 60)


def test_who_could_not_hear_takes_nobody_for_dead(fragile, proxies):
    """All are cut off for longer than `member_timeout`; whoever is back first waits for the others as if it had just come."""
    ways = {name: proxies() for name in ("trainer", "explorer", "second")}
    for name, proxy in ways.items():
        through(fragile, proxy, name)

    async def main():
        async with fragile.trainer() as trainer, fragile.joined("explorer") as explorer, fragile.joined("second") as second:
            await fragile.pass_time(4, explorer)
            for proxy in ways.values():
                proxy.stall()
                proxy.cut()
            fragile.now += 75.0
            ways["explorer"].forward()
            await explorer.until(lambda: explorer._signs._looked == fragile.now)
            await fragile.pass_time(4, explorer)
            for proxy in ways.values():
                proxy.forward()
            await asyncio.gather(explore(explorer, 1), explore(second, 1))
            await trainer.lease(0)
        assert set(fragile.rows("SELECT state FROM members")) == {("left",)}

    run(main(), 60)


def test_who_is_dead_is_found_by_who_hears_all_along_and_by_one_that_was_away(fragile):
    async def main():
        dead = fragile.member("dead")
        await dead.join(fragile.contract)
        await dead.start()
        async with fragile.joined("alive") as alive:
            await fragile.pass_time(4, alive)
            fragile.now += 75.0
            await fragile.pass_time(4, alive)
            assert alive.admission.dropped.total() == 0
            await fragile.pass_time(12, alive)
            await alive.until(lambda: alive.admission.dropped["explorer_lost"] == 1)
        await dead._database.close()

    run(main(), 60)


def test_an_explorer_is_missed_soon_where_there_are_others_and_a_trainer_is_not():
    signs = LifeSigns(60.0)
    beats = {"trainer": 1, "one": 1, "two": 1}
    lost = {}
    for second in range(0, 80, 2):
        for name in signs.look({**beats, "two": second}, float(second), ("one", "two")):
            lost.setdefault(name, second)
    assert lost == {"one": 8, "trainer": 62}
    alone = LifeSigns(60.0)
    assert not any(alone.look(beats, float(second)) for second in range(0, 60, 2))


def test_who_was_cut_off_is_not_alone_for_that(fragile, proxies):
    proxy = proxies()
    through(fragile, proxy, "explorer")

    async def main():
        async with fragile.joined("explorer") as explorer:
            explorer._peer_timeout_s = 20.0
            await fragile.pass_time(4, explorer)
            proxy.stall()
            fragile.now += 30.0
            proxy.forward()
            await fragile.pass_time(4, explorer)
            async with fragile.trainer():
                await explorer.until(lambda: explorer.accompanied)
            await explorer.until(lambda: not explorer.accompanied)
            for _ in range(12):
                fragile.now += 2.0
                explorer._signs.look({}, fragile.now)
            with pytest.raises(Alone):
                explorer._notice_peers()

    run(main(), 60)


def test_a_server_without_a_place_for_one_more_is_waited_for_and_told(fragile, caplog):
    def is_told():
        return any("too many clients" in text or "reserved" in text for text in caplog.messages)

    async def main():
        async with fragile.joined("explorer") as explorer:
            await explore(explorer, 1)
            taken = []
            exploring = asyncio.create_task(explore(explorer, 3))
            while not is_told():
                await asyncio.to_thread(take_all_places, fragile, taken)
            for connection in taken:
                connection.close()
            await exploring
            assert explorer.admission.buffered == 4

    run(main(), 60)


def take_all_places(party, taken):
    """Those of others, too."""
    try:
        while True:
            taken.append(psycopg.connect(party.address.replace("+psycopg", ""), autocommit=True))
    except psycopg.OperationalError:
        mine = [connection.info.backend_pid for connection in taken]
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> ALL(%s)"
        taken[0].execute(others, [mine])


@pytest.mark.usefixtures("postgres_address")
def test_a_run_follows_its_database_to_the_standby_that_is_promoted():
    """Both are in the address, as libpq writes it."""
    with postgres.running() as primary, postgres.running() as standby:
        standby.stop("immediate")
        shutil.rmtree(standby.data)
        standby.copy(primary)
        standby.start()
        postgres.make_database(primary.url, "run")
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        party = Party(f"postgresql+psycopg://roll@{hosts}/run?target_session_attrs=read-write")
        party.steps = LONG + 2

        async def main():
            fails = asyncio.create_task(fail_over(party, primary, standby))
            trainer = await whole_run(party, LONG)
            await fails
            is_whole(party, trainer, LONG)

        run(main(), 100)


async def fail_over(party, primary, standby):
    """After everything that was committed has arrived there, as with synchronous replication."""
    while not has_begun(party):
        await asyncio.to_thread(time.sleep, 0.05)
    with psycopg.connect(f"{primary.url}/run".replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        connection.execute("SELECT pg_reload_conf()")
        seq = connection.execute("SELECT seq FROM runs").fetchone()[0]
        while connection.execute("SELECT seq FROM runs").fetchone()[0] < seq + 8:
            await asyncio.to_thread(time.sleep, 0.05)
    await asyncio.to_thread(primary.stop, "immediate")
    await asyncio.to_thread(standby.promote)


def has_begun(party):
    try:
        return party.rows("SELECT trained FROM runs")[0][0] > 0
    except Exception:  # the tables are not there yet
        return False


def test_a_database_that_has_gone_back_is_an_error_that_says_so(fragile):
    async def main():
        async with fragile.joined("explorer") as explorer:
            await explore(explorer, 2)
            fragile.change("UPDATE runs SET seq = seq - 2")
            with pytest.raises(DatabaseFailed, match=r"has \d+ changes, and had \d+: a standby took over"):
                await explorer.start()
            fragile.change("UPDATE runs SET seq = seq + 2")

    run(main())


def test_nobody_waits_longer_than_peer_timeout(fragile, proxies):
    proxy = proxies()
    through(fragile, proxy, "explorer")
    fragile.patience = 1.0

    async def main():
        explorer = fragile.member("explorer")
        await explorer.join(fragile.contract)
        proxy.stall()
        proxy.cut()
        with pytest.raises(DatabaseFailed, match=r"the database was away for \d+ s \(peer_timeout\)"):
            await explorer.start()
        began = time.monotonic()
        with pytest.raises(DatabaseFailed):
            await explorer.announce_end("failed", "the database is away")
        assert time.monotonic() - began < 8.0, "who has given up asks once"
        proxy.forward()
        await explorer.leave()

    run(main(), 60)


def test_what_is_wrong_with_a_statement_is_not_tried_again():
    async def fails():
        raise DatabaseFailed("no such column")

    with pytest.raises(DatabaseFailed, match="no such column"):
        asyncio.run(Outage(1e9).outlast(fails))


def test_limits_are_below_member_timeout_on_both_sides_and_the_address_wins(fragile):
    for timeout in (1.0, 10.0, 60.0, 3600.0):
        limits = Limits.below(timeout)
        assert limits.held < limits.answer < limits.patience < limits.statement <= timeout / 2
    engine = open_engine(fragile.address, Limits.below(60.0), short=True)
    with engine.connect() as connection:
        names = ("idle_in_transaction_session_timeout", "lock_timeout", "statement_timeout", "tcp_user_timeout")
        found = {name: connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in names}
        assert list(found.values()) == ["5s", "10s", "30s", "10000"]
        assert connection.exec_driver_sql("SHOW tcp_keepalives_idle").scalar_one() == "5"
    given = arguments_of(open_engine(f"{fragile.address}?connect_timeout=9"), Limits.below(60.0))
    assert (int(given["connect_timeout"]), given["tcp_user_timeout"], given["keepalives_idle"]) == (9, 10_000, 5)


@pytest.mark.parametrize(
    ("address", "hosts", "ports"),
    [
        ("postgresql+psycopg://me@one:5432,two:5433/run?target_session_attrs=read-write", "one,two", "5432,5433"),
        ("postgresql+psycopg://me:p%40ss@one,two/run", "one,two", "5432,5432"),
        ("postgresql+psycopg://me@[fd77::a]:5432,[fd77::b]:5432/run", "fd77::a,fd77::b", "5432,5432"),
        ("postgresql+psycopg://me@/run?host=one:5432&host=two:5433", "one,two", "5432,5433"),
    ],
)
def test_an_address_may_name_several_servers(address, hosts, ports):
    given = arguments_of(open_engine(address), Limits.below(60.0))
    assert (given["host"], str(given.get("port", ""))) == (hosts, ports)
    assert given["user"] == "me" and given["dbname"] == "run"
    assert ("target_session_attrs" in address) == (given.get("target_session_attrs") == "read-write")
    assert url_of(address).database == "run"
