"""`kill -9` of the driver at any moment, then resume: every step is done, every prompt ends once, nothing is trained twice."""

from __future__ import annotations

import gzip
import json
import random
import signal
import time

import pytest

from roll.cli.verify import main
from roll.core.record.journal import journal_parts

RESUME = "resume_from_checkpoint=auto"


def kill_at(run, step: int, seed: int) -> None:
    """SIGKILL at a random moment after `step` steps."""
    run.wait_for_steps(step, 120)
    time.sleep(random.Random(seed).uniform(0.0, 0.25))
    run.look_up_family()
    assert run.process.poll() is None, f"the run was over before it could be killed:\n{run.output}"
    run.signal(signal.SIGKILL)
    assert run.end() == -signal.SIGKILL


AHEAD = ("use_kl_loss=true", "kl_loss_coef=0.01", "num_gpus_per_node=3", "reference={device_mapping: 2}")
"""The next step is leased, and scored, while a step trains."""
ROTATED = ("rollout_log_per_step=all", "rollout_log_limit_gb=0.00008")
"""Samples lie in files of 20 kB, of which the oldest go."""


@pytest.mark.parametrize(
    ("steps", "more"),
    [((2,), ()), ((6,), ()), ((4, 8), ROTATED), ((4, 8), AHEAD), ((5,), (*AHEAD, "train_on_arrival=true"))],
    ids=["early", "middle", "twice", "scored ahead", "trained on arrival"],
)
def test_resume_after_kill(launch, accounts, steps, more):
    for seed, step in enumerate(steps):
        kill_at(launch(RESUME, *more), step, seed=10 * step + seed)
    last = launch(RESUME, *more)
    assert last.end() == 0, last.output
    assert "Traceback" not in last.output
    accounts(last.dir)
    if more == ROTATED:
        left = journal_parts(last.dir / "samples.jsonl")
        assert len(left) > 1 and left[0].start and sum(part.path.stat().st_size for part in left) < 110_000


def test_a_killed_run_leaves_its_figures_and_its_trace(launch):
    """They are rewritten while it runs; nobody can write them after SIGKILL but the watchdog, which says how the run ended."""
    run = launch("max_steps=100000", "save_steps=100000")
    announced = run.dir / "summary.json"
    run.wait_for("figures", lambda: announced.exists() and run.summary().get("steps"))
    running = run.summary()
    assert running["status"] == "running" and running["steps"] >= 1
    assert main([str(run.dir)]) == 0, "a run that runs is judged by its journals"
    run.wait_for("newer figures", lambda: run.summary()["steps"] > running["steps"])
    run.signal(signal.SIGKILL)
    assert run.end() == -signal.SIGKILL
    summary = run.wait_for_epitaph()
    assert summary["status"] == "failed" and f"process {run.process.pid}" in summary["reason"]
    assert summary["steps"] > running["steps"] and summary["staleness"]["histogram"] and summary["groups"]["trained"]
    events = json.loads(gzip.decompress((run.dir / "trace/trace-0001.json.gz").read_bytes()))["traceEvents"]
    groups = {event["id"]: event["args"]["status"] for event in events if (event["ph"], event["name"]) == ("b", "group")}
    assert {"trained", "live"} <= set(groups.values())
    assert [event["name"] for event in events].count("step 1") == 1
    assert main([str(run.dir)]) == 0


@pytest.mark.ray
@pytest.mark.timeout(600)  # three runs; on a machine that is busy each takes a while to start
def test_resume_after_kill_with_ray(launch, accounts):
    """Killed, resumed, asked to stop (by SIGTERM, which Ray would take for itself), and finished without Ray."""
    killed = launch(RESUME, local=False)
    killed.wait_for_steps(1, 120)
    workers = {killed.worker(name) for name in ("actor_train-0", "actor_infer-0", "rewards.even-0")}
    kill_at(killed, 4, seed=4)
    assert workers < killed.family.keys() and any("raylet" in title for title in killed.family.values())
    killed.wait_for_family_to_end()

    stopped = launch(RESUME, local=False)
    stopped.wait_for_steps(6, 120)
    stopped.look_up_family()
    stopped.signal(signal.SIGTERM)
    assert stopped.end(30) == 130, stopped.output
    summary = stopped.summary()
    assert summary["status"] == "interrupted" and "Traceback" not in stopped.output
    roles = ("driver", "actor_train", "actor_infer", "rewards.even")
    assert all(summary["memory"][f"{role}_rss_mb"]["peak"] > 10 for role in roles)
    assert not [name for name in summary["memory"] if "device" in name], "there is no figure of a device that is not there"
    stopped.wait_for_family_to_end()

    last = launch(RESUME)
    assert last.end() == 0, last.output
    assert last.summary()["resumed_from_step"] == summary["steps"]
    accounts(last.dir)
