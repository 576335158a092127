"""The folder that all see lies on a host of its own, and hangs, as NFS does when its server is away."""

from __future__ import annotations

import shlex
import shutil
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest
from tiny_world import read_json_lines

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
RUN = ("max_steps=100000", "actor_train.training_args.learning_rate=1e-8", "num_gpus_per_node=2", "eval_steps=1000000")
HANGS_S = 30
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


def hang(here, run):
    """Returns when it began."""
    here.hosts[1].freeze()
    began = time.monotonic()
    run.wait_for_output(f"{FOLDER}/run has not answered for 10 s", 40)
    time.sleep(max(0.0, began + HANGS_S - time.monotonic()))  # it lasts so long
    here.hosts[1].thaw()
    steps = len(run.steps())
    run.wait_for_steps(steps + 10, 60)
    run.signal(signal.SIGINT)
    assert run.end() == 130, run.output
    return began


def test_training_goes_on_while_the_folder_hangs(site):
    here = site(2)
    there = mounted(here.hosts[0], here.hosts[1])
    run = here.launch(here.hosts[0], f"output_dir={FOLDER}", *RUN, "save_steps=1000000", local=True)
    run.dir = there / "run"
    run.wait_for_steps(5)
    hang(here, run)
    ended = [row["time/elapsed_s"] for row in read_json_lines(run.dir / "metrics.jsonl") if "actor_train/lr" in row]
    stop_s = max(after - before for before, after in pairwise(ended))
    assert stop_s < 10, run.output
    groups = run.summary()["groups"]
    here.note(what=f"the folder that all see hangs for {HANGS_S} s, no checkpoint due", stop_s=round(stop_s, 1), groups=groups)
    run.is_clean()


def test_a_run_whose_checkpoint_waits_for_a_folder_says_so_and_goes_on_when_it_is_back(site):
    here = site(2)
    there = mounted(here.hosts[0], here.hosts[1])
    run = here.launch(here.hosts[0], f"output_dir={FOLDER}", *RUN, "save_steps=5", local=True)
    run.dir = there / "run"
    run.wait_for_steps(6)
    began = hang(here, run)
    here.record(f"the folder that all see hangs for {HANGS_S} s, checkpoints due every five steps", run, began)
    run.is_clean()
