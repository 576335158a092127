"""A reward that blocks its event loop for good, in real runs: no time limit of that loop can end it."""

from __future__ import annotations

import pytest

from .conftest import check_accounts


def test_it_costs_the_groups_whose_samples_it_blocks_for(launch):
    """With --local the loop was the driver's, which went on waiting for ever."""
    run = launch("rewards.even.worker_cls=fault_workers.BlocksForOnePrompt", "rewards.even.timeout_s=1")
    assert run.end() == 0, run.output
    check_accounts(run.dir)
    summary = run.summary()
    assert summary["groups"]["dropped"]["reward_error"] >= 1
    # On a busy machine one that does not block may take a second, too.
    (error,) = [error for error in summary["reward_errors"] if error != "even: timeout"]
    assert error.startswith("even: timeout: it blocks its event loop, in BlocksForOnePrompt.grade (")


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_it_ends_the_run_with_its_name_if_it_always_blocks(launch):
    """The heartbeat has nothing to do with it: the worker's own loop turns."""
    worker_cls = "rewards.even.worker_cls=fault_workers.BlocksAlways"
    run = launch("max_steps=100000", "heartbeat_timeout=0", worker_cls, "rewards.even.timeout_s=1", local=False)
    assert run.end(300) == 1, run.output
    reason = run.summary()["reason"]
    assert "RewardStuck: fault_workers.BlocksAlways has blocked its event loop 3 times and still does" in reason
    assert "in BlocksAlways.grade (" in reason and f"error: {reason}" in run.output
