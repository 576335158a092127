"""A process is itself and no other: not one of its name and number on another machine, nor one that had its number before."""

import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from roll.core.distributed import processes
from roll.core.distributed.processes import Process
from roll.platform import file_systems
from roll.platform.file_systems import of_network


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "infinity"])
    yield process
    process.kill()
    process.wait()


def test_a_process_is_alive_until_it_has_ended_stopped_or_not(sleeper):
    here = Process.here(sleeper.pid)
    assert here.alive and Process.this().alive and here != Process.this()
    sleeper.send_signal(signal.SIGSTOP)
    assert here.alive
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert here.alive is False, "nobody has asked yet how it ended"
    sleeper.wait()
    assert here.alive is False


def test_its_number_is_not_it(sleeper):
    here = Process.here(sleeper.pid)
    assert replace(here, ticks=here.ticks - 1).alive is False
    for elsewhere in ({"boot": "another"}, {"table": "pid:[1]"}, {"boot": ""}, {"table": ""}):
        for pid in (sleeper.pid, 2**22 + 1):
            assert replace(here, pid=pid, **elsewhere).alive is None


def test_where_nothing_can_be_read_nothing_is_known(monkeypatch, tmp_path):
    this = Process.this()
    monkeypatch.setattr(processes, "_BOOT", tmp_path / "none")
    assert Process.this().boot == "" and this.alive is None and Process.this().alive is None


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces are root's")
def test_in_another_process_table_or_time_the_same_number_is_another():
    code = "import sys; from roll.core.distributed.processes import Process; print(Process(ARGS).alive)"
    code = code.replace("ARGS", "sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])")
    this = [str(value) for value in asdict(Process.this()).values()]
    for spaces in (["--pid", "--fork", "--mount-proc"], ["--time", "--boottime", "400000", "--fork"], []):
        command = [*(["unshare", *spaces] if spaces else []), sys.executable, "-c", code, *this]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()})
        if "Operation not permitted" in done.stderr:
            pytest.skip("this machine refuses namespaces")
        assert done.stdout.strip() == ("None" if spaces else "True"), done.stderr


def test_a_process_is_read_back_and_nothing_else_is_one():
    this = Process.this()
    assert Process.read(asdict(this)) == this and str(this) == f"process {this.pid} on {this.host}"
    for other in (None, [], {}, asdict(this) | {"pid": "1"}, asdict(this) | {"more": 1}):
        assert Process.read(other) is None


LINE = "36 35 98:0 / {place} rw,noatime shared:1 - {kind} {source} rw"


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "fuse.sshfs", "lustre", "gpfs", "ceph", "beegfs"])
def test_a_path_on_a_network_file_system_is_known_by_its_mount(monkeypatch, tmp_path, kind):
    mounts = [
        ("/", "ext4"),
        (tmp_path, kind),
        (tmp_path / "local", "tmpfs"),
        (tmp_path / "twice", "ext4"),
        (tmp_path / "twice", kind),
    ]
    lines = [LINE.format(place=str(place).replace(" ", "\\040"), kind=found, source="server:/x") for place, found in mounts]
    (tmp_path / "mountinfo").write_text("\n".join(lines))
    monkeypatch.setattr(file_systems, "MOUNTS", tmp_path / "mountinfo")
    assert of_network(tmp_path / "run/groups.db") == of_network(tmp_path / "twice/groups.db") == kind
    assert of_network(tmp_path / "local/groups.db") == of_network(tmp_path.parent / "groups.db") == ""
    (tmp_path / "linked").symlink_to(tmp_path / "local")
    assert of_network(tmp_path / "linked/groups.db") == ""
    (tmp_path / "mountinfo").write_text(LINE.format(place="/a\\040b", kind=kind, source="x"))
    assert of_network(file_systems.Path("/a b/c")) == kind
    monkeypatch.setattr(file_systems, "MOUNTS", tmp_path / "none")
    assert of_network(tmp_path) == ""
