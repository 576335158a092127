"""Temporary folders go with their process, however that ends; what a dead one left is removed by the next."""

import os
import signal
import subprocess
import sys

from roll.platform.temp_folder import FRESH_S, TempFolder, temporary_files_in

LEAVE = """
import os, signal, sys
from pathlib import Path
from roll.platform.temp_folder import TempFolder
folder = TempFolder("test", Path(sys.argv[1]))
(folder.path / "file").write_text("x")
print(folder.path, flush=True)
sys.stdin.read()
"""


def owner(parent):
    process = subprocess.Popen(
        [sys.executable, "-c", LEAVE, str(parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    return process, process.stdout.readline().strip()


def test_a_living_owners_folder_is_left_alone_and_a_killed_ones_is_removed(tmp_path):
    process, left = owner(tmp_path)
    mine = TempFolder("test", tmp_path)
    assert os.path.isdir(left)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert os.path.isfile(f"{left}/file"), "nobody could clean up"
    other = TempFolder("other", tmp_path)
    assert os.path.isdir(left), "another kind's"
    another = TempFolder("test", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f.path.name for f in (mine, other, another))


def test_a_folder_goes_with_its_process_and_when_it_is_removed(tmp_path):
    process, path = owner(tmp_path)
    process.communicate("")
    assert not os.path.exists(path)
    folder = TempFolder("test", tmp_path)
    folder.remove()
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_may_be_about_to_be_locked(tmp_path):
    fresh, old = tmp_path / "roll-test-a", tmp_path / "roll-test-b"
    fresh.mkdir()
    old.mkdir()
    os.utime(old, (0, os.stat(old).st_mtime - 2 * FRESH_S))
    TempFolder("test", tmp_path).remove()
    assert list(tmp_path.iterdir()) == [fresh]


def test_temporary_files_of_another_process_go_into_the_folder_and_compiled_kernels_do_not(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    ask = "import tempfile; print(tempfile.mkstemp()[1])"
    variables = temporary_files_in(tmp_path)
    made = subprocess.run([sys.executable, "-c", ask], env=variables, capture_output=True, text=True, check=True).stdout.strip()
    assert os.path.dirname(made) == str(tmp_path)
    assert not variables["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/kernels")
    assert temporary_files_in(tmp_path)["TORCHINDUCTOR_CACHE_DIR"] == "/kernels"
