"""`kill -9` of the driver at any moment, then resume: every step is done, every prompt has one fate, nothing is trained twice."""

from __future__ import annotations

import random
import signal
import time

import pytest

RESUME = "resume_from_checkpoint=auto"


def kill_at(run, step: int, seed: int) -> None:
    """SIGKILL at a random moment after `step` steps."""
    run.wait_for_steps(step, 120)
    time.sleep(random.Random(seed).uniform(0.0, 0.25))
    run.look_up_family()
    assert run.process.poll() is None, f"the run was over before it could be killed:\n{run.output}"
    run.signal(signal.SIGKILL)
    assert run.end() == -signal.SIGKILL


@pytest.mark.parametrize("steps", [(2,), (6,), (4, 8)], ids=["early", "middle", "twice"])
def test_resume_after_kill(launch, accounts, steps):
    for seed, step in enumerate(steps):
        kill_at(launch(RESUME), step, seed=10 * step + seed)
    last = launch(RESUME)
    assert last.end() == 0, last.output
    assert "Traceback" not in last.output
    accounts(last.dir)


@pytest.mark.ray
def test_resume_after_kill_with_ray(launch, accounts):
    run = launch(RESUME, local=False)
    kill_at(run, 4, seed=4)
    titles = " ".join(run.family.values())
    assert "raylet" in titles and titles.count("ray::") >= 3, f"not the processes of a Ray run: {titles}"
    run.wait_for_orphans_to_end()
    resumed = launch(RESUME, local=False)
    assert resumed.end(120) == 0, resumed.output
    accounts(resumed.dir)
