"""`kill -9` of the driver and of coordinators while episodes of 20 turns are played, whose turns have effects: each episode goes
on at its last turn, and no effect happens twice. `ROLL_KILLS` says how many of each."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from roll.cli.verify import read_run, violations

KILLS = int(os.environ.get("ROLL_KILLS", "2"))
TURNS, EPISODES = 20, 8
RESUME = ("resume_from_checkpoint=auto", "save_steps=1", "max_ckpt_to_keep=2", "async_generation_ratio=0")
SHOP = (
    *("custom_envs.letters.env_type=fault_workers.Shop", f"custom_envs.letters.max_steps={TURNS}"),
    *("max_tokens_per_step=1", "sequence_length=62", "train_env_manager.group_filter_cls=null"),
    "train_env_manager.max_env_num_per_worker=8",  # one coordinator: whatever is recorded, it plays
)


def steps(kills: int) -> str:
    return f"max_steps={kills + 2}"


def recorded(run) -> int:
    """Bytes of all records."""
    sizes = []
    for path in (run.dir / "turns").glob("*.jsonl"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:  # its group is in a checkpoint
            continue
    return sum(sizes)


def newest_checkpoint(run) -> int:
    return max((int(path.name[5:]) for path in (run.dir / "checkpoints").glob("step-*")), default=0)


def check(run, tmp_path: Path, steps: int) -> None:
    """All effects of the run are those of the episodes that it trained, once each."""
    assert list(violations(read_run(run.dir))) == []
    orders = (tmp_path / "orders").read_text().splitlines()
    assert max(Counter(orders).values()) == 1, "an effect has happened twice"
    baskets = Counter(line.split()[0] for line in orders)
    assert set(baskets.values()) == {TURNS}, "an episode was given up in the middle"
    assert len(baskets) == steps * EPISODES, "an episode was played twice"
    summary = run.summary()
    assert summary["groups"]["trained"] * 2 == steps * EPISODES
    assert summary["groups"]["dropped"].keys() <= {"environment_worker_died"}, "one that died twice before its first turn"
    assert not (run.dir / "turns").exists()


@pytest.mark.slow
@pytest.mark.timeout(120 + 60 * KILLS)
def test_episodes_survive_the_driver(launch, tmp_path):
    """At any moment of the rollouts of a step whose weights a checkpoint has. Groups that were complete are not played again."""
    moments = random.Random(1)
    for kill in range(KILLS):
        run = launch(*RESUME, *SHOP, steps(KILLS), agentic=True)
        before = recorded(run)
        run.wait_for("a step's checkpoint", lambda: newest_checkpoint(run) >= kill + 1)  # noqa: B023
        run.wait_for("turns", lambda: newest_checkpoint(run) == len(run.steps()) and recorded(run) > before)  # noqa: B023
        time.sleep(moments.uniform(0.0, 0.4))
        run.signal(signal.SIGKILL)
        assert run.end() == -signal.SIGKILL
    last = launch(*RESUME, *SHOP, steps(KILLS), agentic=True)
    assert last.end() == 0, last.output
    check(last, tmp_path, KILLS + 2)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300 + 60 * KILLS)
def test_episodes_survive_their_coordinators(launch, tmp_path):
    moments = random.Random(2)
    run = launch(*RESUME, *SHOP, steps(2 * KILLS), local=False, agentic=True)
    for _ in range(KILLS):
        run.wait_for_steps(1, 150)
        before = recorded(run)
        run.wait_for("turns", lambda: recorded(run) not in (0, before))  # noqa: B023
        time.sleep(moments.uniform(0.0, 0.8))
        pid = run.worker("environments-0")
        os.kill(pid, signal.SIGKILL)
        run.wait_for("successor", lambda: run.worker("environments-0") != pid)  # noqa: B023
    assert run.end(300) == 0, run.output
    assert run.summary()["environment_worker_deaths"] == KILLS
    check(run, tmp_path, 2 * KILLS + 2)
    run.leaves_nothing()
