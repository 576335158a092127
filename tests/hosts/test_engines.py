"""An engine's host is cut off or frozen for a while: the others go on, and it serves again when it is back."""

from __future__ import annotations

import time

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.hosts, pytest.mark.timeout(300)]

RUN = ("max_steps=100000", "num_nodes=3", "num_gpus_per_node=1", "save_steps=100")
ROLES = ("actor_train.device_mapping='0'", "actor_infer.device_mapping='1-2'")
LONGEST_STOP_S = 15.0


@pytest.mark.parametrize("transport", ["object_store", "collective"])
@pytest.mark.parametrize("how", ["cut", "freeze"])
def test_half_of_the_engines_fall_silent_for_a_while(site, how, transport):
    here = site(3)
    run = here.launch(here.hosts[0], *RUN, *ROLES, f"model_update_transport={transport}", RAY_ADDRESS=here.start_ray())
    run.wait_for_steps(5)
    lost, began = here.hosts[2], time.monotonic()
    getattr(lost, how)()
    run.wait_for_output("gives no sign of life", 40)
    steps = len(run.steps())
    run.wait_for_steps(steps + 10, 60)
    {"cut": lost.heal, "freeze": lost.thaw}[how]()
    run.wait_for_output("serves again, after a silence of", 60)
    steps = len(run.steps())
    run.wait_for_steps(steps + 10)
    run.signal(2)
    assert run.end() == 130, run.output
    assert run.longest_stop_s(began) < LONGEST_STOP_S
    summary = run.summary()
    assert (summary["engine_restarts"], len(summary["engine_silent_s"])) == (0, 1)
    run.is_clean()
