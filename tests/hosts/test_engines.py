"""An engine's host is cut off or frozen for a while: the others go on, and it serves again when it is back."""

from __future__ import annotations

import time

import pytest
from hosts import FAST, Host

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.hosts, pytest.mark.timeout(300)]

RUN = ("max_steps=100000", "actor_train.training_args.learning_rate=1e-8", "num_nodes=3", "num_gpus_per_node=1", "save_steps=100")
ROLES = ("actor_train.device_mapping='0'", "actor_infer.device_mapping='1-2'")
LONGEST_STOP_S = 15.0
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


def test_a_cable_that_is_pulled_again_and_again(site):
    here = site(3)
    run = here.launch(here.hosts[0], *RUN, *ROLES, RAY_ADDRESS=here.start_ray())
    run.wait_for_steps(5)
    began = time.monotonic()
    for _ in range(5):
        here.hosts[2].cut()
        time.sleep(5)  # the fault lasts so long, and comes so often
        here.hosts[2].heal()
        time.sleep(15)
    steps = len(run.steps())
    run.wait_for_steps(steps + 10)
    run.signal(2)
    assert run.end() == 130, run.output
    assert here.record("one of two engines' hosts, its cable pulled five times for 5 s", run, began) < LONGEST_STOP_S
    assert run.summary()["engine_restarts"] == 0
    run.is_clean()
