"""How a process is set up: a deterministic run has MKL in its strict mode, or says that it came too late; what a process starts
with is no concern of the garbage collector."""

import gc
import os
import subprocess
import sys

import pytest

from roll.cli.train import main
from roll.configs.dotted_path import import_object
from roll.distributed.process_setup import DETERMINISTIC, collection_paused, mkl_is_strict

with_mkl = pytest.mark.skipif(mkl_is_strict() is None, reason="torch is built without MKL here")
USE_MKL = "import torch; torch.randn(64, 64) @ torch.randn(64, 64);"
SETS = (
    "from roll.distributed import process_setup as d; "
    "{first} d.set_deterministic(); {then} d.warn_if_not_deterministic(); print(d.mkl_is_strict())"
)
PROGRAM = """
import gc, sys
from roll.distributed import process_setup

class Cycle:
    def __init__(self): self.itself = self

{body}
"""


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


def answer(body: str) -> list[str]:
    program = [sys.executable, "-c", PROGRAM.format(body=body)]
    return subprocess.run(program, capture_output=True, text=True, check=True, timeout=120).stdout.split()


def test_it_runs_again_after_an_import_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    (tmp_path / "broken_module.py").write_text("import gc\nassert gc.isenabled(), 'paused'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match="paused"), collection_paused():
        import_object("broken_module.Name")
    assert gc.isenabled()


def test_what_is_there_is_spared_once_and_garbage_of_later_is_not() -> None:
    spared = "process_setup.spare_what_is_there(); print(gc.get_freeze_count() > 1000)"
    later = "count = gc.get_freeze_count(); Cycle(); process_setup.spare_what_is_there(); print(count == gc.get_freeze_count())"
    assert answer(f"{spared}\n{later}\nprint(gc.collect() > 0)") == ["True", "True", "True"]
