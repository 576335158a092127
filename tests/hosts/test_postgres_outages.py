"""The database of groups on a host of its own: cables pulled and plugged in, servers restarted and failed over; nothing is lost,
nothing doubled, and nobody waits for a host that is gone."""

from __future__ import annotations

import time

import pytest
from hosts_apart import begin

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(420)]


def pulled(host, seconds):
    host.cut()
    time.sleep(seconds)  # what is tried is that so much time passes
    host.heal()


@pytest.fixture
def record(record_property, capsys):
    """The longest time without a step since something was done."""

    def write(what, run, since):
        stop = run.trainer.longest_stop_s(since)
        record_property("longest stop", f"{what}: {stop:.1f} s")
        with capsys.disabled():
            print(f"\n[hosts] {what}: longest stop {stop:.1f} s, steps {run.steps()}")
        return stop

    return write


@pytest.mark.parametrize("seconds", [15, 90])
def test_an_explorer_whose_cable_is_pulled_stops_nobody(site, record, seconds):
    """At a moment of its own choosing, so within a transaction or not. After 90 s the others have taken it for dead."""
    run = begin(site, 400)
    began = time.time()
    cut = run.site.hosts[1]
    cut.cut()
    time.sleep(seconds)
    during = record(f"an explorer's cable pulled {seconds} s", run, began)
    before = run.steps()
    cut.heal()
    run.wait_for_steps(10)
    assert during < 15.0 and before > 3 and record("and plugged in", run, began) < 15.0
    assert run.explorers[1].process.poll() is None
    if seconds < 60:
        assert run.explorers[0].process.poll() is None
    else:
        assert run.explorers[0].end(60) == 1 and "taken for dead by the other processes" in run.explorers[0].output
    run.server.ask("UPDATE runs SET max_steps = 1")
    run.trainer.is_clean()


@pytest.mark.parametrize("seconds", [15, 75])
def test_a_database_whose_cable_is_pulled_is_waited_for_by_all(site, record, seconds):
    """75 s is longer than `member_timeout`: all were cut off, and nobody is taken for dead."""
    run = begin(site, 40)
    began = time.time()
    pulled(run.site.hosts[3], seconds)
    run.wait_for_steps(3, 60)
    assert record(f"the database's cable pulled {seconds} s", run, began) < seconds + 15.0
    run.end(40)
    assert "taken for dead" not in "".join(each.output for each in (run.trainer, *run.explorers))


def test_a_server_that_is_restarted_three_times_costs_a_moment(site, record):
    run = begin(site, 60)
    began = time.time()
    for mode in ("fast", "immediate", "fast"):
        run.server.stop(mode)
        run.server.start()
        run.wait_for_steps(3)
    assert record("the server restarted three times", run, began) < 15.0
    run.end(60)


def test_a_standby_that_is_promoted_takes_over(site, record):
    run = begin(site, 60, standby=True)
    began = time.time()
    run.site.hosts[3].power_off()
    run.standby.promote()
    run.wait_for_steps(5)
    assert record("failed over to a standby", run, began) < 20.0
    run.server = run.standby
    run.end(60)


def test_a_trainer_on_another_host_takes_the_place_of_one_that_lost_its_power(site, record):
    run = begin(site, 30)
    run.wait_for_steps(6)
    began = time.time()
    run.site.hosts[0].power_off()
    run.trainer = run.again(run.site.hosts[3])
    run.trainer.wait_for("a step", lambda: run.trainer.longest_stop_s(began) > 0, 200)
    assert record("the trainer's host lost its power", run, began) < 100.0
    run.end(30)


def test_on_hosts_of_one_name_a_second_trainer_does_not_push_the_living_one_out(site, record):
    run = begin(site, 40, one_name=True)
    run.wait_for_steps(5)
    began = time.time()
    shared = run.site.hosts.shared
    run.site.hosts[1].run(f"mkdir -p /mnt/copy && cp -a {shared}/output/run /mnt/copy/run")
    second = run.again(run.site.hosts[1], "output_dir=/mnt/copy")
    assert second.end(120) != 0 and "a trainer of this run is alive" in second.output, second.output
    assert record("hosts of one name, a second trainer", run, began) < 15.0
    run.end(40)
