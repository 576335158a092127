"""What Ray leaves to be desired: the death of its control processes, hung workers, leftovers; with a real Ray."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray

ENDLESS = "max_steps=100000"


def check_failed(run, *parts: str) -> None:
    assert run.end(240) == 1, run.output
    summary = run.summary()
    assert summary["status"] == "failed" and all(part in summary["reason"] for part in parts), summary["reason"]
    errors = [line for line in run.output.splitlines() if line.startswith("error: ")]
    assert errors == [f"error: {summary['reason']}"]
    assert "Traceback" not in run.output, run.output


def control(run, name: str) -> int:
    (pid,) = [pid for pid, title in run.look_up_family().items() if f"/{name} --" in title]
    return pid


def folder_of(run) -> Path:
    """The folder of the run's Ray instance."""
    pid = control(run, "gcs_server")
    title = run.family[pid]
    (log_dir,) = [word for word in title.split() if word.startswith("--log_dir=")]
    return Path(log_dir.removeprefix("--log_dir=")).parents[2]


def check_nothing_is_left(run, folder: Path) -> None:
    run.wait_for_family_to_end(20)
    assert not folder.exists()


@pytest.mark.timeout(600)
def test_the_death_of_a_control_process_ends_the_run_with_the_reason(launch, tmp_path):
    """Also while a checkpoint is written: nobody waits for workers that cannot be reached. The workers are Ray's own: forks would
    end with their raylet by the tests' doing."""
    name = "gcs_server"
    run = launch(ENDLESS, "rpc_timeout=100000", "actor_train.worker_cls=fault_trainers.SlowDisk", local=False, forked=False)
    run.wait_for("the writing", (tmp_path / "writing").exists, 240)
    folder, pid = folder_of(run), control(run, name)
    os.kill(pid, signal.SIGKILL)
    check_failed(run, f"Ray's {name} (process {pid}) died (killed by SIGKILL)")
    assert any((run.dir / "ray_logs").glob(f"{name}*.out")), "the logs are kept where Ray failed"
    check_nothing_is_left(run, folder)


@pytest.mark.timeout(600)
def test_the_instance_is_private_small_and_gone_with_a_killed_driver(launch):
    run = launch(ENDLESS, local=False)
    run.wait_for_steps(2, 240)
    folder = folder_of(run)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and folder.stat().st_uid == os.getuid()
    titles = list(run.look_up_family().values())
    assert not [title for title in titles if "dashboard.py" in title or ("monitor.py" in title and "log_monitor" not in title)]
    # A stopped worker hears nothing of its raylet's death.
    os.kill(run.worker("rewards.even-0"), signal.SIGSTOP)
    run.signal(signal.SIGKILL)
    run.process.wait()
    summary = run.wait_for_epitaph()
    assert summary["status"] == "failed" and f"the driver (process {run.process.pid}) was killed" in summary["reason"]
    check_nothing_is_left(run, folder)
    run.wait_for_output(f"error: {summary['reason']}")
