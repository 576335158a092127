"""Environment workers on a host that falls silent: their groups are played by the others, after `heartbeat_timeout`."""

from __future__ import annotations

import time

import pytest
from hosts import Host

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.hosts, pytest.mark.timeout(300)]

RUN = (
    *("max_steps=100000", "actor_train.training_args.learning_rate=1e-8", "save_steps=1000", "eval_steps=1000"),
    *("num_nodes=3", "num_gpus_per_node=1", "actor_train.device_mapping='0'", "actor_infer.device_mapping='1-2'"),
    *("train_env_manager.max_env_num_per_worker=2", "heartbeat_timeout=10", "device_timeout=120"),
)
FAULTS = {"cut": (Host.cut, Host.heal, "its cable pulled"), "freeze": (Host.freeze, Host.thaw, "frozen")}
LONGEST_STOP_S = 30.0


@pytest.mark.parametrize("how", sorted(FAULTS))
def test_a_host_with_environment_workers_and_an_engine_falls_silent(site, how):
    here = site(3)
    run = here.launch(here.hosts[0], *RUN, agentic="agentic", RAY_ADDRESS=here.start_ray())
    run.wait_for_steps(5)
    lost, (fail, mend, words) = here.hosts[2], FAULTS[how]
    began = time.monotonic()
    fail(lost)
    time.sleep(30)  # the fault lasts so long
    steps = len(run.steps())
    run.wait_for_steps(steps + 5, 60)
    mend(lost)
    steps = len(run.steps())
    run.wait_for_steps(steps + 10, 60)
    run.signal(2)
    assert run.end() == 130, run.output
    what = f"one of three hosts with environment workers, and an engine, {words} for 30 s (heartbeat_timeout 10)"
    assert here.record(what, run, began) < LONGEST_STOP_S
    run.is_clean()
