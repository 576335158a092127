"""A run of the product as a user starts it, both roles taking turns on the GPU."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from roll.core.distributed.devices import detect

ROOT = Path(__file__).parents[2]
STEPS = 4


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks are scripts: they import each other by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def test_roles_take_turns_on_the_gpu(device: str, tmp_path: Path) -> None:
    """rlvr_config: actor_train and actor_infer on device 0, no staleness. The number types are left to `auto`, bf16 on a GPU:
    the trainer's log-probs differ from the sampler's by its rounding."""
    from pipeline_run import run_pipeline

    assert detect().kind == device.partition(":")[0]
    subprocess.run([sys.executable, "examples/embedded/make_embedded.py"], cwd=ROOT, check=True, timeout=300)
    run = run_pipeline(ROOT / "examples" / "config" / "rlvr_config.yaml", [f"max_steps={STEPS}"], tmp_path, local=True)

    assert (run.summary["status"], run.summary["steps"]) == ("finished", STEPS)
    assert run.summary["staleness"]["max"] == 0
    groups = run.summary["groups"]
    assert groups["trained"] == STEPS * 32
    assert groups["admitted"] == groups["trained"] + sum(groups["dropped"].values())
    assert len(run.steps) == STEPS
    for row in run.steps:
        assert math.isfinite(row["actor_train/grad_norm"]) and row["actor_train/grad_norm"] > 0
        assert row["actor_train/skipped_steps"] == 0
        assert abs(row["actor/train_infer_kl"]) <= 1e-2
        assert row["actor/train_infer_ratio_token_mean"] == pytest.approx(1, abs=2e-2)


def test_roles_overlap_on_the_gpu(device: str, tmp_path: Path) -> None:
    """The same device at the same time: rollouts go on while a step trains, no role moves to the host, and no token is more than
    one version old."""
    from pipeline_run import run_pipeline

    subprocess.run([sys.executable, "examples/embedded/make_embedded.py"], cwd=ROOT, check=True, timeout=300)
    changes = [f"max_steps={STEPS}", "sharing=overlap", "async_generation_ratio=1"]
    run = run_pipeline(ROOT / "examples" / "config" / "rlvr_config.yaml", changes, tmp_path, local=True)

    assert (run.summary["status"], run.summary["steps"]) == ("finished", STEPS)
    assert run.summary["staleness"]["max"] == 1
    assert "device_turns" not in run.summary or not run.summary["device_turns"]["count"]
