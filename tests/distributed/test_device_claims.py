"""Processes of runs that share a machine take devices that no other holds, or hear that they share them."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from roll.core.distributed.device_locks import VISIBLE, claimed

ROOT = Path(__file__).parents[2]
HOLDER = """
import sys
from pathlib import Path
from roll.core.distributed.device_locks import claimed
with claimed("the trainer", 8, range(4), 4, Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    monkeypatch.delenv(VISIBLE, raising=False)


def test_trainer_and_explorer_of_one_machine_do_not_meet(tmp_path):
    """Each file says gpu_per_node: 4, on a machine of 8."""
    with claimed("the trainer", 8, range(4), 4, tmp_path) as said:
        assert said == [] and os.environ[VISIBLE] == "0,1,2,3"
        os.environ.pop(VISIBLE)  # the explorer is another process
        with claimed("the explorer", 8, range(4), 4, tmp_path) as told:
            assert os.environ[VISIBLE] == "4,5,6,7"
            assert told == ["on GPU 4, 5, 6, 7 of this machine: 0, 1, 2, 3 are used by the trainer"]
            os.environ.pop(VISIBLE)
            with claimed("one more", 8, range(4), 4, tmp_path) as shared:
                (line,) = shared
                assert line.startswith("! GPU 0, 1, 2, 3 of this machine: also used by the trainer; the explorer; start each")
    assert VISIBLE not in os.environ, "the next run of this process chooses anew"


def test_devices_that_the_files_tell_apart_are_not_moved(tmp_path):
    with claimed("the trainer", 8, range(4), None, tmp_path) as said:
        with claimed("the explorer", 8, range(4, 8), None, tmp_path) as told:
            assert said == told == [] and VISIBLE not in os.environ
        with claimed("the explorer", 8, [3, 4], 8, tmp_path) as told:
            (line,) = told
            assert line.startswith("! GPU 3 of this machine: also used by the trainer; ") and VISIBLE not in os.environ


def test_what_the_user_chose_stays_and_an_overlap_is_told(tmp_path, monkeypatch):
    with ExitStack() as runs:
        monkeypatch.setenv(VISIBLE, "2,3,6")
        assert runs.enter_context(claimed("first", 3, [0, 1], 2, tmp_path)) == []
        monkeypatch.setenv(VISIBLE, "3,4")
        (line,) = runs.enter_context(claimed("second", 2, [0, 1], 2, tmp_path))
        assert line.startswith("! GPU 3 of this machine: also used by first; start each") and os.environ[VISIBLE] == "3,4"
    assert os.environ[VISIBLE] == "3,4"


def test_a_claim_ends_with_its_process_however_that_ends(tmp_path):
    program = [sys.executable, "-c", HOLDER, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    holder = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with claimed("the explorer", 8, range(4), 4, tmp_path):
        assert os.environ[VISIBLE] == "4,5,6,7"
    holder.kill()
    holder.wait()
    with claimed("the explorer", 8, range(4), 4, tmp_path) as said:
        assert said == [] and os.environ[VISIBLE] == "0,1,2,3"


def test_without_a_folder_for_the_locks_nothing_is_said(tmp_path):
    (tmp_path / "file").touch()
    with claimed("the trainer", 2, [0], None, tmp_path / "file") as said:
        assert said == []
