"""A real run whose trainer hangs in a step: the run says so, and goes on when it can."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

import pytest

from roll.cli.train import main
from roll.core.flow.flow import Hangs

pytestmark = pytest.mark.slow


def release_when_explained(run_dir: Path, released: Path) -> None:
    end = time.monotonic() + 120
    while not list(run_dir.glob("stacks/*-train.txt")) and time.monotonic() < end:
        time.sleep(0.05)
    released.touch()


def test_a_step_that_hangs_is_explained(world, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(world.workers))
    monkeypatch.setenv("FAULTS", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr("roll.core.flow.flow.Hangs", partial(Hangs, 2.0))
    run_dir = tmp_path / "output/run"
    threading.Thread(target=release_when_explained, args=(run_dir, tmp_path / "released"), daemon=True).start()
    overrides = (f"output_dir={tmp_path / 'output'}", "actor_train.worker_cls=fault_trainers.StuckInStep", "max_steps=4")
    assert main(["--local", *world.arguments(*overrides)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("train works on")]
    assert line.startswith("train works on step 3 for "), line
    assert ": actor_train-0 has not answered train for " in line
    (path,) = run_dir.glob("stacks/*-train.txt")
    assert f"stacks: {path}" in line
    assert "in hang" in path.read_text() and "fault_workers.py" in path.read_text()
