"""A trainer's rank loses its host: another that joins within `device_timeout` takes its place, else the run ends and says why."""

from __future__ import annotations

import time

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.hosts, pytest.mark.timeout(400)]

RUN = (
    "max_steps=100000",
    "actor_train.training_args.learning_rate=1e-8",
    "num_nodes=3",
    "num_gpus_per_node=1",
    "save_steps=5",
    "heartbeat_timeout=20",
    "eval_steps=1000",
)
RANKS = ("actor_infer.device_mapping='0'", "actor_train.device_mapping='1-2'")
SMALL = ("actor_train.training_args.per_device_train_batch_size=8",)


def test_a_ranks_host_is_off_and_booted_again(site):
    here = site(3)
    address = here.start_ray()
    run = here.launch(here.hosts[0], *RUN, *RANKS, *SMALL, "device_timeout=200", RAY_ADDRESS=address)
    run.wait_for_steps(7)
    began = time.monotonic()
    here.hosts[2].power_off()
    run.wait_for_output("it is waited for, up to", 120)
    here.hosts[2].boot()
    here.join_ray(here.hosts[2], f"--address={address}")
    run.wait_for_output("as if it had been resumed", 120)
    resumed = len(run.steps())
    run.wait_for_steps(resumed + 5)
    run.signal(2)
    assert run.end() == 130, run.output
    here.record("a trainer's rank: its host powered off, booted, joined again", run, began)
    assert len(run.summary()["trainer_recovery_s"]) == 1
    run.is_clean()


def test_a_ranks_host_that_stays_away_ends_the_run(site):
    here = site(3)
    run = here.launch(here.hosts[0], *RUN, *RANKS, *SMALL, "device_timeout=6", RAY_ADDRESS=here.start_ray())
    run.wait_for_steps(7)
    here.hosts[2].power_off()
    assert run.end(200) == 1
    assert "is gone, and the cluster has no other for it within 6 s (device_timeout)" in run.output
    run.is_clean()
