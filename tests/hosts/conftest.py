"""Runs on separate hosts: a Ray cluster over them, or processes apart, and what was done to which host."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hosts import REPO, Host, Hosts, Style, why_not
from tiny_world import WORKERS, World, make_world, read_json_lines, wait_for

from roll.cli.verify import read_run, violations

BIN = Path(sys.prefix) / "bin"
ACCOUNT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200", "PYTHONPATH": f"{WORKERS}{os.pathsep}{REPO}"}
"""Of whoever starts something there."""


@dataclass
class HostRun:
    """A process of `roll` on a host, and the folder that it leaves."""

    host: Host
    process: subprocess.Popen[bytes]
    log: Path
    dir: Path
    _stepped: list[float] = field(default_factory=list)

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def steps(self) -> list[int]:
        return [row["step"] for row in read_json_lines(self.dir / "metrics.jsonl") if "actor_train/lr" in row]

    def wait_for(self, what: str, condition: Callable[[], Any], deadline_s: float = 120.0) -> Any:
        def met() -> Any:
            value = condition()
            assert value or self.process.poll() is None, f"it ended before there was {what}:\n{self.output}"
            return value

        return wait_for(what, met, deadline_s)

    def wait_for_steps(self, count: int, deadline_s: float = 120.0) -> None:
        self.wait_for(f"step {count}", lambda: len(self.steps()) >= count, deadline_s)

    def wait_for_output(self, text: str, deadline_s: float = 120.0) -> None:
        self.wait_for(f"{text!r} in\n{self.output}", lambda: text in self.output, deadline_s)

    @property
    def driver(self) -> int:
        """Its process, as this machine counts; `nsenter` only waits for it."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    def signal(self, number: int) -> None:
        """To the driver."""
        os.kill(self.driver, number)

    def end(self, deadline_s: float = 120.0) -> int:
        """The exit code."""
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the run did not end within {deadline_s:.0f} s:\n{self.output}")

    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.dir / "summary.json").read_text()))

    def longest_stop_s(self, since: float) -> float:
        """The longest time without a new step, of those that ended after `since` (of `time.monotonic`), in seconds."""
        return max((b - a for a, b in pairwise(self._stepped) if b >= since), default=math.inf)

    def watch(self) -> None:
        """Notes when each step comes, as long as the process runs."""
        count = 0
        while self.process.poll() is None:
            if (now := len(self.steps())) > count:
                count = now
                self._stepped.append(time.monotonic())
            time.sleep(0.1)

    def is_clean(self) -> None:
        """No promise of the run is broken."""
        assert list(violations(read_run(self.dir))) == []


@dataclass
class Site:
    """Hosts, a world in their common folder, and the runs that a test starts there."""

    hosts: Hosts
    world: World
    runs: list[HostRun] = field(default_factory=list)

    def launch(self, host: Host, *overrides: str, agentic: str = "", local: bool = False, **given: str) -> HostRun:
        """A run started on that host; `agentic`: its configuration, if it is one of agents; `given`: variables of its
        environment."""
        log = self.hosts.shared / f"log-{len(self.runs)}.txt"
        pipeline, config = ("agentic", agentic) if agentic else ("rlvr", "run")
        output = self.hosts.shared / "output"
        command = [str(BIN / "python"), str(REPO / f"examples/start_{pipeline}_pipeline.py"), *(["--local"] if local else [])]
        command += self.world.arguments(f"output_dir={output}", *overrides, config=config)
        process = host.start(command, log, REPO, ACCOUNT | given)
        given_as = dict(each.split("=", 1) for each in overrides)
        folder = output / given_as.get("exp_name", "run")
        if given_as.get("mode") == "explore":
            folder = folder / "explorers" / given_as.get("explorer_name", "explorer")
        self.runs.append(HostRun(host, process, log, folder))
        threading.Thread(target=self.runs[-1].watch, daemon=True).start()
        return self.runs[-1]

    def roll(self, host: Host, *words: str, **given: str) -> tuple[list[str], dict[str, str]]:
        """A command of `roll` on that host, and its environment."""
        return host.command(str(BIN / "roll"), *words), host.environment(ACCOUNT | given)

    def start_ray(self, cpus: int = 2, **given: str) -> str:
        """A Ray cluster over all hosts, the first the head; returns what RAY_ADDRESS has to be."""
        self.join_ray(self.hosts[0], "--head", "--port=6379", "--include-dashboard=false", cpus=cpus, **given)
        address = self.hosts[0].address
        where = f"[{address}]:6379" if ":" in address else f"{address}:6379"
        for host in list(self.hosts)[1:]:
            self.join_ray(host, f"--address={where}", cpus=cpus, **given)
        return where

    def join_ray(self, host: Host, *options: str, cpus: int = 2, **given: str) -> None:
        more = ["--disable-usage-stats", f"--num-cpus={cpus}", "--object-store-memory=104857600"]
        more += [f"--node-ip-address={host.address}"]
        host.run(shlex.join([str(BIN / "ray"), "start", *options, *more]), **(ACCOUNT | {"RAY_AUTH_MODE": "disabled"} | given))

    def record(self, what: str, run: HostRun, since: float) -> float:
        """Adds the longest stop of a run to the records; returns it."""
        stop_s = run.longest_stop_s(since)
        self.note(what=what, stop_s=round(stop_s, 1), groups=run.summary()["groups"])
        return stop_s

    def note(self, **row: Any) -> None:
        """Adds a row to the records (`ROLL_HOSTS_RECORD`, a JSON-lines file)."""
        if record := os.environ.get("ROLL_HOSTS_RECORD"):
            with Path(record).open("a") as file:
                file.write(json.dumps({**row, "day": time.strftime("%Y-%m-%d")}) + "\n")

    def close(self) -> None:
        for run in self.runs:
            if run.process.poll() is None:
                run.process.kill()
                run.process.wait()


@pytest.fixture(scope="session")
def _hosts_can_be() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def site(_hosts_can_be: None, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """`site(count, **style)`: hosts in that number and `Style`, with a world in their common folder."""
    with contextlib.ExitStack() as open_:

        def make(count: int, **style: Any) -> Site:
            hosts = open_.enter_context(Hosts(count, tmp_path, Style(**style)))
            made = Site(hosts, make_world(hosts.shared))
            open_.callback(made.close)
            return made

        yield make
