"""The database of groups on a host of its own: cables pulled and plugged in, servers restarted and failed over; nothing is lost,
nothing doubled, and nobody waits for a host that is gone."""

from __future__ import annotations

import signal
import time

import pytest
from hosts_apart import begin

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(420)]

SOON_S = 15.0


def waited(seconds):
    time.sleep(seconds)  # what is tried is that so much time passes


def without(run, *texts):
    told = "".join(each.output for each in (run.trainer, *run.explorers))
    return not any(text in told for text in texts)


@pytest.mark.parametrize("seconds", [15, 90])
def test_an_explorer_whose_cable_is_pulled_stops_nobody(site, seconds):
    """At any moment, so within a transaction or not. The others take it for dead soon, and it explores on when it is back."""
    run = begin(site, 900)
    began = time.monotonic()
    run.site.hosts[1].cut()
    waited(seconds)
    run.wait_for_steps(1, SOON_S)
    run.site.hosts[1].heal()
    run.wait_for_steps(10)
    run.explorers[0].wait_for_output("the others had taken this process for dead: exploring restarts", 60)
    assert [each.process.poll() for each in run.explorers] == [None, None]
    run.trainer.signal(signal.SIGINT)
    assert run.trainer.end(60) == 130
    assert run.site.record(f"an explorer's cable pulled {seconds} s", run.trainer, began) < SOON_S
    run.trainer.is_clean()


@pytest.mark.parametrize("seconds", [15, 75])
def test_a_database_whose_cable_is_pulled_is_waited_for_by_all(site, seconds):
    """75 s is longer than `member_timeout`: all were cut off, and nobody is taken for dead."""
    run = begin(site, 24)
    began = time.monotonic()
    run.site.hosts[3].cut()
    waited(seconds)
    run.site.hosts[3].heal()
    run.end(24)
    assert run.site.record(f"the database's cable pulled {seconds} s", run.trainer, began) < seconds + SOON_S
    assert without(run, "taken for dead", "no sign of life")


def test_a_server_that_is_restarted_three_times_costs_a_moment(site):
    run = begin(site, 24)
    began = time.monotonic()
    for mode in ("fast", "immediate", "fast"):
        run.server.stop(mode)
        run.server.start()
        run.wait_for_steps(3)
    run.end(24)
    assert run.site.record("the database's server restarted three times", run.trainer, began) < SOON_S


def test_a_standby_that_is_promoted_takes_over(site):
    run = begin(site, 24, standby=True)
    began = time.monotonic()
    run.site.hosts[3].power_off()
    run.standby.promote()
    run.server = run.standby
    run.end(24)
    assert run.site.record("the database's host lost its power, a standby promoted", run.trainer, began) < 3 * SOON_S


def test_a_trainer_on_another_host_takes_the_place_of_one_that_lost_its_power(site):
    """After `member_timeout`, from the newest checkpoint."""
    run = begin(site, 20)
    run.wait_for_steps(6)
    run.site.hosts[0].power_off()
    began = time.monotonic()
    run.trainer = run.again(run.site.hosts[3])
    run.trainer.wait_for_output("waiting 60 s at most for a sign of life of it (member_timeout)")
    run.end(20)
    assert time.monotonic() - began > 60.0


def test_on_hosts_of_one_name_a_second_trainer_does_not_push_the_living_one_out(site):
    run = begin(site, 40, one_name=True)
    run.wait_for_steps(5)
    began = time.monotonic()
    run.site.hosts[1].run(f"mkdir -p /mnt/copy && cp -a {run.site.hosts.shared}/output/run /mnt/copy/run")
    second = run.again(run.site.hosts[1], "output_dir=/mnt/copy")
    assert second.end(120) != 0 and "a trainer of this run is alive: process" in second.output, second.output
    run.end(40)
    assert run.site.record("hosts of one name, a second trainer", run.trainer, began) < SOON_S
    assert without(run, "has taken the place")


def test_a_database_that_stays_away_ends_the_run_with_a_checkpoint_from_which_it_goes_on(site):
    run = begin(site, 24, "peer_timeout=20", "member_timeout=20")
    run.wait_for_steps(4)
    run.server.stop()
    assert [each.end(120) for each in (run.trainer, *run.explorers)] == [1, 1, 1]
    assert "the database was away for" in run.trainer.summary()["reason"]
    steps = run.steps()
    assert (run.trainer.dir / f"checkpoints/step-{steps}").is_dir(), run.trainer.output
    run.server.start()
    run.trainer = run.again(run.site.hosts[0])
    run.explorers = [run.explore(number) for number in (1, 2)]
    run.end(24)
    assert f"step {steps + 1}/24" in run.trainer.output
