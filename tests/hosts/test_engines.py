"""An engine's host is cut off or frozen for a while: the others go on, and it serves again when it is back.

`ROLL_HOSTS_PULLS=30` pulls cables for 5 s of every 20 s over ten minutes."""

from __future__ import annotations

import os
import time

import pytest
from hosts import FAST, Host
from hosts_apart import begin

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.hosts, pytest.mark.timeout(300)]

RUN = ("max_steps=100000", "actor_train.training_args.learning_rate=1e-8", "num_nodes=3", "num_gpus_per_node=1", "save_steps=100")
ROLES = ("actor_train.device_mapping='0'", "actor_infer.device_mapping='1-2'")
LONGEST_STOP_S = 15.0
PULLS = int(os.environ.get("ROLL_HOSTS_PULLS", "2"))
TIMES = "for 5 s every 20 s over ten minutes" if PULLS >= 30 else f"{PULLS} times for 5 s"
FAULTS = {
    "cut": (Host.cut, Host.heal),
    "freeze": (Host.freeze, Host.thaw),
    "mute": (Host.mute, lambda host: host.slow(FAST)),
    "deafen": (Host.deafen, lambda host: host.slow(FAST)),
}
"""With the last two one direction is cut."""


WORDS = {"cut": "its cable pulled", "freeze": "frozen", "mute": "what it sends lost", "deafen": "what it is sent lost"}


@pytest.mark.parametrize("transport", ["object_store", "collective"])
@pytest.mark.parametrize("how", sorted(FAULTS))
def test_half_of_the_engines_fall_silent_for_a_while(site, how, transport):
    here = site(3)
    run = here.launch(here.hosts[0], *RUN, *ROLES, f"model_update_transport={transport}", RAY_ADDRESS=here.start_ray())
    run.wait_for_steps(5)
    lost, began = here.hosts[2], time.monotonic()
    fail, mend = FAULTS[how]
    fail(lost)
    run.wait_for_output("gives no sign of life", 40)
    steps = len(run.steps())
    run.wait_for_steps(steps + 10, 60)
    mend(lost)
    run.wait_for_output("serves again, after a silence of", 60)
    steps = len(run.steps())
    run.wait_for_steps(steps + 10)
    run.signal(2)
    assert run.end() == 130, run.output
    summary = run.summary()
    what = f"one of two engines' hosts, {WORDS[how]} until ten steps were done without it ({transport})"
    assert here.record(what, run, began) < LONGEST_STOP_S
    assert (summary["engine_restarts"], len(summary["engine_silent_s"])) == (0, 1)
    run.is_clean()


@pytest.mark.timeout(1200)
def test_a_cable_that_is_pulled_again_and_again(site):
    here = site(3)
    run = here.launch(here.hosts[0], *RUN, *ROLES, RAY_ADDRESS=here.start_ray())
    run.wait_for_steps(5)
    began = time.monotonic()
    here.hosts[2].pull_again_and_again(PULLS)
    steps = len(run.steps())
    run.wait_for_steps(steps + 10)
    run.signal(2)
    assert run.end() == 130, run.output
    assert here.record(f"one of two engines' hosts, its cable pulled {TIMES}", run, began) < LONGEST_STOP_S
    assert run.summary()["engine_restarts"] == 0
    run.is_clean()


@pytest.mark.timeout(1200)
def test_an_explorers_cable_that_is_pulled_again_and_again(site):
    run = begin(site, 100_000, "actor_train.training_args.learning_rate=1e-8", "eval_steps=1000000")
    began = time.monotonic()
    run.site.hosts[2].pull_again_and_again(PULLS)
    run.wait_for_steps(10)
    everybody = (run.trainer, *run.explorers)
    for each in everybody:
        each.signal(2)
    assert [each.end() for each in everybody] == [130] * 3, "\n".join(each.output[-4000:] for each in everybody)
    assert run.site.record(f"an explorer's cable pulled {TIMES}", run.trainer, began) < LONGEST_STOP_S
    trained = run.trainer.summary()["groups"]["trained"]
    assert run.server.ask("SELECT count(*) FROM groups WHERE state = $$trained$$") == str(trained)
    run.trainer.is_clean()
