"""How a process is set up: a deterministic run has MKL in its strict mode, or says that it came too late."""

import os
import subprocess
import sys

import pytest

from roll.cli.train import main
from roll.platform.process_setup import DETERMINISTIC, mkl_is_strict

with_mkl = pytest.mark.skipif(mkl_is_strict() is None, reason="torch is built without MKL here")
USE_MKL = "import torch; torch.randn(64, 64) @ torch.randn(64, 64);"
SETS = (
    "from roll.platform import process_setup as d; "
    "{first} d.set_deterministic(); {then} d.warn_if_not_deterministic(); print(d.mkl_is_strict())"
)


def run(first, then):
    environment = {name: value for name, value in os.environ.items() if name not in DETERMINISTIC}
    code = SETS.format(first=first, then=then)
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)


@with_mkl
@pytest.mark.slow
def test_set_before_the_first_matrix_product_mkl_is_strict():
    done = run("", USE_MKL)
    assert done.stdout.strip() == "True" and "MKL" not in done.stderr


@with_mkl
@pytest.mark.slow
def test_set_after_it_the_process_warns():
    done = run(USE_MKL, "")
    assert done.stdout.strip() == "False" and "MKL_CBWR" in done.stderr


@with_mkl
def test_the_command_sets_it_before_anything_is_loaded(monkeypatch, tmp_path, capsys):
    for name in DETERMINISTIC:
        monkeypatch.setenv(name, "to be removed")  # so that it is put back after the test, whatever the command sets
        monkeypatch.delenv(name)
    absent = tmp_path / "absent"
    overrides = ["deterministic=true", "async_generation_ratio=0", f"output_dir={tmp_path}", f"resume_from_checkpoint={absent}"]
    overrides += [f"pretrain={absent}"]
    assert main(["--config_name", "rlvr_config_async", *overrides]) == 2
    assert "resume_from_checkpoint" in capsys.readouterr().err
    assert os.environ["MKL_CBWR"] == DETERMINISTIC["MKL_CBWR"]
