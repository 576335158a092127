"""Two runs at the same time, whose environments are in another interpreter: on one machine, each with a Ray of its own, and on a
cluster. One of them is killed and goes on; neither notices the other, and nothing of either is left."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from ray_heads import a_head

from roll.platform.temp_folder import TempFolder

STEPS, BATCH, GROUP = 6, 4, 2


@pytest.fixture
def temporary(monkeypatch):
    """Short, for sockets are in it."""
    folder = tempfile.mkdtemp(prefix="two")
    monkeypatch.setenv("TMPDIR", folder)
    yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def start(launch, tmp_path):
    """`slots`: of the machine, of which a run takes two."""

    def started(name, steps, slots):
        sizes = (f"max_steps={steps}", f"rollout_batch_size={BATCH * GROUP}", f"train_env_manager.group_size={GROUP}")
        tag = ("custom_envs.letters.env_type=tests.faults.fault_workers.Letters", f"+custom_envs.letters.python={sys.executable}")
        room = (f"num_gpus_per_node={slots}", "device_timeout=60")
        more = (*room, f"output_dir={tmp_path / name}", "resume_from_checkpoint=auto")
        run = launch(*tag, *sizes, *more, agentic=True, local=False, forked=False)
        run.folder = tmp_path / name
        return run

    return started


def players(temporary, table):
    """Processes that play, of those whose temporary files are there."""
    found = []
    for pid in (pid for pid, (_, title) in table.items() if "roll.platform.child" in title):
        with contextlib.suppress(OSError):
            if str(temporary).encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    return found


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("on_a_cluster", [False, True])
def test_two_runs_side_by_side(on_a_cluster, start, temporary, faults, row, verified, monkeypatch):
    line = row("agentic", "driver", f"SIGKILL beside a run, one {'cluster' if on_a_cluster else 'machine'}")
    with contextlib.ExitStack() as stack:
        if on_a_cluster:
            _, environment = stack.enter_context(a_head(faults.HERE, cpus=8))
            for name in ("RAY_ADDRESS", "HOME"):
                monkeypatch.setenv(name, environment[name])
        slots = 4 if on_a_cluster else 2
        undisturbed, killed = start("undisturbed", 100_000, slots), start("killed", STEPS, slots)
        undisturbed.wait_for_steps(1)
        killed.wait_for_checkpoint(2)
        assert len(players(temporary, faults.process_table())) >= 2, "each run has processes that play"
        line.begins()
        killed.signal(signal.SIGKILL)
        assert killed.end() == -signal.SIGKILL
        before = len(undisturbed.steps())
        again = start("killed", STEPS, slots)
        assert again.end(200) == 0, again.output
        assert len(undisturbed.steps()) > before, "the other run went on"
        undisturbed.signal(signal.SIGTERM)
        assert undisturbed.end() == 130, undisturbed.output
        for run, resumed, status in ((undisturbed, False, "interrupted"), (again, True, "finished")):
            summary = run.summary()
            assert (summary["status"], summary["environment_failures"]) == (status, {})
            assert (summary["resumed_from_step"] >= 2) == resumed
            verified(run.dir)
        assert again.summary()["steps"] == STEPS
        faults.wait_for("end of all that plays", lambda: not players(temporary, faults.process_table()), 60)
    TempFolder("envs", temporary).remove()  # which removes those whose owner is gone
    assert not list(temporary.glob("roll-envs-*")), "folders of processes that have ended"
    line.ends("resumed by the same command; the other goes on; no process or folder is left")
