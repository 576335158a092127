"""`kill -9` of a worker process: the run ends soon, fails, and says whose death it was."""

from __future__ import annotations

import os
import signal
import time

import pytest

pytestmark = pytest.mark.ray


@pytest.mark.parametrize("role", ["actor_infer", "actor_train", "rewards.even"])
def test_run_fails_soon_and_names_the_role(launch, role):
    run = launch("max_steps=100000", "max_engine_restarts=0", local=False)
    run.wait_for_steps(2, 120)
    os.kill(run.worker(f"{role}-0"), signal.SIGKILL)
    killed = time.monotonic()
    assert run.end(30) == 1, run.output
    print(f"{role}: the run ended {time.monotonic() - killed:.1f} s after the kill")
    summary = run.summary()
    assert summary["status"] == "failed"
    assert role in summary["reason"] and "died" in summary["reason"] and "\n" not in summary["reason"]
    errors = [line for line in run.output.splitlines() if line.startswith("error: ")]
    assert errors == [f"error: {summary['reason']}"]
    assert "Traceback" not in run.output, run.output
    assert summary["steps"] >= 2 and (run.dir / "learning_curve.png").exists()
    run.wait_for_family_to_end()
