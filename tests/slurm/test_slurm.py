"""The printed script in a Slurm cluster: runs that finish, and that go on after what Slurm does to them."""

from __future__ import annotations

import time

import pytest
import yaml

from roll.core.record.live_files import is_running

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.slurm, pytest.mark.timeout(900)]

TWO = ("--nodes=2", "num_gpus_per_node=1")
ENDLESS = (*TWO, "max_steps=100000", "save_steps=20")
TRAINER_ELSEWHERE = ("actor_infer.device_mapping='0'", "actor_train.device_mapping='1'")


def test_a_run_over_two_nodes_finishes(slurm):
    job = slurm.submit(*TWO, "max_steps=3")
    job.wait_for_state("COMPLETED", "FAILED")
    assert job.state == "COMPLETED", job.output
    assert job.steps() == [1, 2, 3]
    job.is_clean()


@pytest.mark.parametrize("lost", [1, 2], ids=["the first", "another, with the trainer"])
def test_a_node_fails(slurm, lost):
    job = slurm.submit(*ENDLESS, *(() if lost == 1 else TRAINER_ELSEWHERE), "save_steps=2")
    job.wait_for("a checkpoint", job.checkpoints)
    slurm.hosts[lost].power_off()
    job.is_requeued()
    slurm.hosts[lost].boot()
    slurm.start_daemons(slurm.hosts[lost])
    job.goes_on()
    job.cancel()
    job.is_clean()


@pytest.mark.parametrize("slurm", [200], indirect=True)
def test_the_run_ends_before_slurm_misses_the_node(slurm):
    job = slurm.submit(*ENDLESS, *TRAINER_ELSEWHERE, "save_steps=2")
    job.wait_for("a checkpoint", job.checkpoints)
    slurm.hosts[2].power_off()
    job.wait_for("the end of the run", lambda: not is_running(job.dir))
    job.wait_for("the job back in the queue", lambda: "back to the queue: a node is lost" in job.output)
    slurm.hosts[2].boot()
    slurm.start_daemons(slurm.hosts[2])
    job.goes_on()
    job.cancel()
    job.is_clean()


def test_a_job_of_more_priority_takes_the_nodes(slurm):
    job = slurm.submit(*ENDLESS)
    job.wait_for_steps(5)
    slurm.run("sbatch --partition=high --nodes=2 --exclusive --output=/dev/null --wrap='sleep 5'")
    job.leaves_a_checkpoint()
    job.goes_on()
    assert "back to the queue: interrupted" in job.output
    job.cancel()
    job.is_clean()


def test_the_time_limit_comes(slurm):
    job = slurm.submit(*ENDLESS)
    job.wait_for_steps(5)
    minutes = int(time.time() - job.started()) // 60 + 3
    slurm.run(f"scontrol update job {job.id} TimeLimit={minutes}")
    job.leaves_a_checkpoint()
    job.is_requeued()
    slurm.run(f"scontrol update job {job.id} TimeLimit=60")
    job.goes_on()
    job.cancel()
    job.is_clean()


def test_an_array_of_seeds(slurm):
    """A node for each; they run side by side."""
    array = slurm.submit("--nodes=1 --array=0-1", "num_gpus_per_node=2", "max_steps=3", "seed=%a", name="seed-%a")
    jobs = [array.task(number) for number in (0, 1)]
    jobs[0].wait_for("both at once", lambda: [job.state for job in jobs] == ["RUNNING"] * 2)
    assert {job.shown("NodeList") for job in jobs} == {"h1", "h2"}
    for number, job in enumerate(jobs):
        job.wait_for_state("COMPLETED", "FAILED")
        assert job.state == "COMPLETED", job.output
        assert job.steps() == [1, 2, 3]
        assert yaml.safe_load((job.dir / "config.yaml").read_text())["seed"] == number
        job.is_clean()
