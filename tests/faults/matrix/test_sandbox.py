"""Hostile programs × what a machine offers to shut them in: a table of what they earned, reached and harmed. All is 0."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import in_container
import pytest
import sandbox_table
from delegated_group import delegated

USER = 10000 + os.getpid() % 50000
"""Who owns nothing here, and is nobody else's."""
RUNSC = f"{shutil.which('runsc')} --rootless --ignore-cgroups --network=none --platform=ptrace"
GVISOR = f"{sys.executable} {in_container.__file__} {RUNSC} --"
MODES = {
    "namespaces": ["--user", str(USER)],
    "namespaces, as root": ["--user", "0"],
    "no namespaces": ["--user", str(USER), "--no-namespaces"],
    "no namespaces, as root": ["--user", "0", "--no-namespaces"],
    "bubblewrap": ["--user", str(USER), "--isolation", "bubblewrap"],
    "gVisor": ["--user", str(USER), "--isolation", GVISOR],
}
LAYERS = {
    "namespaces": ["namespaces", "filter"],
    "namespaces, as root": ["namespaces", "filter"],
    "no namespaces": ["filter", "Landlock"],
    "no namespaces, as root": ["filter", "Landlock", "users"],
    "bubblewrap": ["isolation", "namespaces", "filter"],
    "gVisor": ["isolation", "filter", "users"],
}
OUTSIDE = ("reached",)
"""What holds of gVisor, too. Its kernel has devices and a /proc of its own, which programs may read, and one can make it end."""
PROGRAMS = {"bubblewrap": "bwrap", "gVisor": "runsc"}
COLUMNS = ("earned", "reached", "harmed", "unjudged", "left")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where any user may be; pytest's own folders are root's."""
    path = Path(tempfile.mkdtemp(dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def owner(path: Path) -> int | None:
    with contextlib.suppress(OSError):
        return path.stat().st_uid
    return None


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", MODES)
def test_no_program_earns_reaches_or_harms_anything(mode: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become each of the users, and forbid namespaces")
    if mode in PROGRAMS and shutil.which(PROGRAMS[mode]) is None:
        pytest.skip(f"{PROGRAMS[mode]} is not installed")
    paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PATH": os.environ["PATH"]}
    with delegated(int(MODES[mode][1])) as group:
        command = [sys.executable, sandbox_table.__file__, str(folder), *MODES[mode]]
        command += [] if group is None else ["--group", str(group)]
        done = subprocess.run(command, env=paths, capture_output=True, text=True, timeout=800, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    row = json.loads(done.stdout.splitlines()[-1])
    layers = [each.partition(":")[0] for each in row["in_force"]]
    with capsys.disabled():
        counts = ", ".join(f"{len(row[name])} {name}" for name in COLUMNS)
        print(f"\n{mode} ({', '.join(layers)}): {row['programs']} programs: {counts}")
    bound = [] if mode == "gVisor" else ["watched memory" if group is None else "control group"]
    assert layers == LAYERS[mode] + bound
    assert row["programs"] >= 600
    deadline = time.monotonic() + 20  # what has been ended is gone a moment later; what runs on stays
    while (
        running := [path.name for path in Path("/proc").glob("[0-9]*") if owner(path) == USER]
    ) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not running
    held = OUTSIDE if mode == "gVisor" else COLUMNS
    assert {name: row[name] for name in held} == {name: [] for name in held}
