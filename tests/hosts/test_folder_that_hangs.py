"""The folder that all see lies on a host of its own, and hangs, as NFS does when its server is away."""

from __future__ import annotations

import shlex
import shutil
import signal
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(300)]

SFTP = "/usr/lib/openssh/sftp-server"
PORT = 7022
SERVE = f"""
import socket, subprocess
with socket.create_server(("", {PORT})) as server:
    while True:
        one, _ = server.accept()
        subprocess.Popen(["{SFTP}"], stdin=one, stdout=one)
        one.close()
"""
RUN = ("max_steps=100000", "actor_train.training_args.learning_rate=1e-8", "num_gpus_per_node=2", "save_steps=20")
FOLDER = "/mnt/common"


def mounted(host, server):
    """A folder of the server's, on that host; returns it as it lies with the server."""
    if missing := [each for each in (SFTP, "sshfs") if shutil.which(each) is None] or not Path("/dev/fuse").exists():
        pytest.skip(f"needs sshfs and sftp-server (Debian: sshfs, openssh-sftp-server), and /dev/fuse: {missing}")
    there = server.folder / "common"
    there.mkdir()
    server.run(f"setsid python3 -c {shlex.quote(SERVE)} > /mnt/sftp.log 2>&1 < /dev/null &")
    host.run(
        f"mkdir {FOLDER} && for _ in $(seq 100); do sshfs -o directport={PORT} {server.address}:/mnt/common {FOLDER} && exit; "
        "sleep 0.1; done; exit 1"
    )
    return there


def test_a_run_whose_folder_hangs_says_so_and_goes_on_when_it_is_back(site):
    here = site(2)
    there = mounted(here.hosts[0], here.hosts[1])
    run = here.launch(here.hosts[0], f"output_dir={FOLDER}", *RUN, local=True)
    run.dir = there / "run"
    run.wait_for_steps(5)
    here.hosts[1].freeze()
    began = time.monotonic()
    run.wait_for_output(f"{FOLDER}/run has not answered for 10 s", 40)
    time.sleep(max(0.0, began + 30 - time.monotonic()))  # it lasts so long
    here.hosts[1].thaw()
    steps = len(run.steps())
    run.wait_for_steps(steps + 10, 60)
    run.signal(signal.SIGINT)
    assert run.end() == 130, run.output
    here.record("the folder that all see hangs for 30 s", run, began)
    run.is_clean()
