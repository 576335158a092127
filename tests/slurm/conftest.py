"""A Slurm cluster on separate hosts: the controller on the first, a node on each of the others; jobs of the printed script."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hosts import REPO, Host, Hosts, why_not
from tiny_world import WORKERS, World, make_world, read_json_lines, wait_for

from roll.cli.verify import read_run, violations
from roll.core.record.live_files import is_running

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch")
HOME = "/mnt/slurm"
"""On each host's own disk: its key, its daemons' state, sockets and logs."""
CONF = """
ClusterName=roll
SlurmctldHost=h0
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/mnt/slurm/munge.socket,cred_expire=10
StateSaveLocation=/mnt/slurm/state
SlurmctldPidFile=/mnt/slurm/slurmctld.pid
SlurmctldLogFile=/mnt/slurm/slurmctld.log
SlurmdSpoolDir=/mnt/slurm/spool
SlurmdPidFile=/mnt/slurm/slurmd.pid
SlurmdLogFile=/mnt/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
JobRequeue=1
SlurmdTimeout={patience}
KillWait=30
NodeName=h[1-{last}] CPUs=2 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=40 PreemptMode=REQUEUE MaxTime=INFINITE
PartitionName=high Nodes=ALL PriorityTier=9 PreemptMode=OFF MaxTime=INFINITE
"""
"""Of a site that uses most defaults, with shorter patience."""

MUNGE = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}


@dataclass
class Job:
    """A job of the printed script, and the folder of its run."""

    slurm: Slurm
    id: str
    dir: Path

    @property
    def output(self) -> str:
        """Of all jobs of the test."""
        return "\n".join(each.read_text(errors="replace") for each in sorted(self.slurm.hosts.shared.glob("job-*.log")))

    @property
    def state(self) -> str:
        return self.shown("JobState")

    def shown(self, key: str) -> str:
        found = re.search(rf"\b{key}=(\S*)", self.slurm.run(f"scontrol show job {self.id}"))
        return found[1] if found else ""

    def steps(self) -> list[int]:
        return [row["step"] for row in read_json_lines(self.dir / "metrics.jsonl") if "actor_train/lr" in row]

    def checkpoints(self) -> list[int]:
        """The steps after which there is a whole one, in order."""
        return sorted(int(each.parent.name.rpartition("-")[2]) for each in self.dir.glob("checkpoints/step-*/manifest.json"))

    def started(self) -> float:
        return time.mktime(time.strptime(self.shown("StartTime"), "%Y-%m-%dT%H:%M:%S"))

    def task(self, number: int) -> Job:
        """A job of the array."""
        return Job(self.slurm, f"{self.id}_{number}", self.dir.with_name(self.dir.name.replace("%a", str(number))))

    def wait_for(self, what: str, condition: Callable[[], Any], deadline_s: float = 300.0) -> float:
        """The seconds that it took."""
        began = time.monotonic()

        def met() -> Any:
            time.sleep(0.3)
            return condition()

        try:
            wait_for(what, met, deadline_s)
        except BaseException:
            print(self.slurm.run(f"scontrol show job {self.id}; sinfo -N -l"), self.output)
            raise
        took = time.monotonic() - began
        print(f"{time.strftime('%T')} {what}: after {took:.1f} s")
        return took

    def wait_for_state(self, *states: str) -> float:
        return self.wait_for(" or ".join(states), lambda: self.state in states)

    def wait_for_steps(self, count: int) -> None:
        self.wait_for(f"{count} steps", lambda: len(self.steps()) >= count)

    def leaves_a_checkpoint(self) -> None:
        """Of its last step, after SIGTERM."""
        self.wait_for("SIGTERM at the run", lambda: "SIGTERM: stopping" in self.output)
        took = self.wait_for("the end of the run", lambda: not is_running(self.dir))
        assert self.checkpoints()[-1] == len(self.steps()) and took < 30, self.output

    def is_requeued(self) -> None:
        self.wait_for("the job back in the queue", lambda: self.shown("Restarts") == "1")

    def goes_on(self) -> None:
        """Another start makes steps, after those of a checkpoint of the first."""
        self.wait_for("another start", lambda: self.shown("Restarts") == "1" and self.state == "RUNNING")
        self.wait_for_steps(len(self.steps()) + 2)
        assert [each.name for each in self.dir.parent.iterdir() if each.is_dir()] == [self.dir.name], "the run began anew"
        assert self.steps() == list(range(1, len(self.steps()) + 1))

    def cancel(self) -> None:
        self.slurm.run(f"scancel {self.id}")
        self.wait_for_state("CANCELLED")
        self.wait_for("idle nodes", lambda: not self.slurm.run("squeue --noheader"))

    def is_clean(self) -> None:
        """No promise of the run is broken."""
        assert list(violations(read_run(self.dir))) == []


@dataclass
class Slurm:
    hosts: Hosts
    world: World
    patience: int
    """Seconds after which a node that does not answer is down."""

    @property
    def environment(self) -> dict[str, str]:
        """Of the account that submits. Its home folder is seen by all."""
        shared = self.hosts.shared
        return {
            "SLURM_CONF": str(shared / "slurm.conf"),
            "HOME": str(shared / "home"),
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": f"{WORKERS}{os.pathsep}{REPO}",
            "ROLL_CONFIG_PATH": str(self.world.folder),
            "ROLL_CONFIG_NAME": "run",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "104857600",
        }

    def run(self, command: str) -> str:
        """On the controller, in the checkout."""
        return self.hosts[0].run(f"cd {REPO}; {command}", **self.environment)

    def start(self) -> None:
        (self.hosts.shared / "home").mkdir()
        (self.hosts.shared / "slurm.conf").write_text(CONF.format(last=len(self.hosts) - 1, patience=self.patience))
        key = os.urandom(128)
        for host in self.hosts:
            folder = host.folder / "slurm"
            folder.mkdir(mode=0o755)
            (folder / "munge.key").write_bytes(key)
            (folder / "munge.key").chmod(0o600)
            self.start_daemons(host)
        wait_for("idle nodes", lambda: self.run("sinfo -N -h -p low -o %T").split() == ["idle"] * 2, 60)

    def start_daemons(self, host: Host) -> None:
        paths = " ".join(f"--{name}={HOME}/munge.{end}" for name, end in MUNGE.items())
        daemon = "slurmd" if host.number else "slurmctld"
        host.run(f"(munged --force {paths} && {daemon}) > /dev/null 2> {HOME}/start.log", **self.environment)

    def submit(self, options: str, *overrides: str, name: str = "run") -> Job:
        """`sbatch` of the printed script; `options` stand before it."""
        output = self.hosts.shared / "output"
        words = shlex.join([f"output_dir={output}", f"exp_name={name}", *overrides])
        options = f"--parsable --gpus-per-node=0 --output={self.hosts.shared}/job-%j.log {options}"
        id_ = self.run(f"sbatch {options} examples/cluster/slurm.sh {words}").strip()
        return Job(self, id_, output / name)


def why_no_slurm() -> str:
    """The reason why there can be no Slurm; none if there can."""
    missing = [each for each in DAEMONS if shutil.which(each, path="/usr/sbin:/usr/bin:/sbin:/bin") is None]
    return f"no {', '.join(missing)}: install slurm-wlm and munge" if missing else why_not()


@pytest.fixture
def slurm(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Slurm]:
    """Three hosts: a controller and two nodes. A parameter is Slurm's patience with a node."""
    if reason := why_no_slurm():
        pytest.skip(reason)
    with Hosts(3, tmp_path) as hosts:
        made = Slurm(hosts, make_world(hosts.shared), getattr(request, "param", 12))
        made.start()
        yield made
