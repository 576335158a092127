"""Real runs on the tiny world, and what they leave."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from forked import Forked, Forks, stands_for
from tiny_world import (
    BATCH,
    GROUP,
    PROMPTS,
    STEPS,
    World,
    make_world,
    prompt_row,
    read_json_lines,
    wait_for,
    write_rows,
)

from roll.cli.verify import GIVEN_BACK, read_run, violations

HERE = Path(__file__).parent
REPO = HERE.parents[1]
__all__ = ["prompt_row", "write_rows"]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def process_table() -> dict[int, tuple[int, str]]:
    """pid -> (parent, title) of every process that is alive (not a zombie)."""
    table = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            if state not in "ZX":
                title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                table[int(entry.name)] = (int(parent), title)
    return table


def descendants(pid: int) -> dict[int, str]:
    """pid -> title of the process's children, their children, and so on. A forked worker of Ray is a child of its place."""
    table = process_table()
    found: dict[int, str] = {}
    parents = {pid}
    while parents:
        children = {child: title for child, (parent, title) in table.items() if parent in parents}
        children |= {other: table[other][1] for parent in parents if (other := stands_for(parent)) in table}
        found |= children
        parents = set(children)
    return found


def shared_memory(pids: Iterable[int]) -> set[str]:
    """What these processes have mapped or open in /dev/shm."""
    found: set[str] = set()
    for process in (Path(f"/proc/{pid}") for pid in pids):
        with contextlib.suppress(OSError):
            found |= {line.split(maxsplit=5)[5] for line in (process / "maps").read_text().splitlines() if "/dev/shm/" in line}
            found |= {name for opened in (process / "fd").iterdir() if (name := os.readlink(opened)).startswith("/dev/shm/")}
    return found


@dataclass
class Run:
    """A real driver process, and the folder that it leaves."""

    folder: Path
    process: subprocess.Popen[bytes] | Forked
    log: Path
    family: dict[int, str] = field(default_factory=dict)
    """Its descendants as last looked up."""
    memory: set[str] = field(default_factory=set)
    """The shared memory that they had whenever they were looked up."""

    @property
    def dir(self) -> Path:
        return self.folder / "run"

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def steps(self) -> list[int]:
        """The training steps in metrics.jsonl."""
        return [row["step"] for row in read_json_lines(self.dir / "metrics.jsonl") if "actor_train/lr" in row]

    def wait_for(self, what: str, condition: Callable[[], Any], deadline_s: float = 150.0) -> Any:
        def met() -> Any:
            value = condition()
            assert value or self.process.poll() is None, f"the run ended before there was {what}:\n{self.output}"
            return value

        return wait_for(what, met, deadline_s)

    def wait_for_steps(self, count: int, deadline_s: float = 150.0) -> None:
        self.wait_for(f"step {count}", lambda: len(self.steps()) >= count, deadline_s)

    def wait_for_checkpoint(self, step: int) -> None:
        """It is complete later than its step: it is written behind the next ones."""
        self.wait_for(f"checkpoint of step {step}", (self.dir / f"checkpoints/step-{step}").exists)

    def look_up_family(self) -> dict[int, str]:
        self.family = descendants(self.process.pid)
        self.memory |= shared_memory(self.family)
        return self.family

    def worker(self, name: str) -> int:
        """The pid of a Ray worker, which its title names. Titles change with every call, and may be read half-changed."""

        def look() -> list[int]:
            return [pid for pid, title in self.look_up_family().items() if title.startswith(f"ray::{name}")]

        return int(self.wait_for(f"process of {name}", look)[0])

    def leaves_nothing(self) -> None:
        """No process and so no port, and no shared memory."""
        self.wait_for_family_to_end()
        assert self.memory, "Ray has shared memory: the test is blind"
        assert not [name for name in self.memory if Path(name).exists()]

    def wait_for_family_to_end(self, deadline_s: float = 150.0) -> None:
        """Until no worker and no server is left, Ray's agents neither."""
        wait_for("end of the driver's processes", lambda: not self.family.keys() & process_table().keys(), deadline_s)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, deadline_s: float = 150.0) -> int:
        """The exit code."""
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the run did not end within {deadline_s:.0f} s:\n{self.output}")

    def wait_for_epitaph(self) -> dict[str, Any]:
        """The summary of a run whose driver was killed, which somebody else writes."""
        return dict(wait_for("summary of the killed run", lambda: (found := self.summary())["status"] != "running" and found))

    def wait_for_output(self, text: str) -> None:
        """Also of who outlives the driver."""
        wait_for(f"line {text!r}", lambda: text in self.output)

    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.dir / "summary.json").read_text()))


Launch = Callable[..., Run]


def environment() -> dict[str, str]:
    paths = f"{HERE}{os.pathsep}{REPO}"
    return os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}


@pytest.fixture
def launch(world: World, forks: Forks, tmp_path: Path) -> Iterator[Launch]:
    """`launch(*overrides, local=True)` starts the example script; whatever still runs at the end of the test is killed. `piped`:
    the log is written by another process, whatever becomes of this one's files. `agentic`: agents instead of prompts, with
    `programs` those that are programs. `forked`: from an interpreter that has made its imports, as Ray's workers are then.
    `before` is called in a process that is not, before Python begins there."""
    runs: list[Run] = []

    def start(
        *overrides: str,
        local: bool = True,
        piped: bool = False,
        agentic: bool = False,
        programs: bool = False,
        forked: bool = True,
        before: Callable[[], object] | None = None,
    ) -> Run:
        log = tmp_path / f"log-{len(runs)}.txt"
        given = environment() | {"FAULTS": str(tmp_path)}
        options = ["--local"] if local else []
        pipeline, config = ("agentic", "programs" if programs else "agentic") if agentic else ("rlvr", "run")
        command = [str(REPO / f"examples/start_{pipeline}_pipeline.py"), *options]
        command += world.arguments(f"output_dir={tmp_path / 'output'}", *overrides, config=config)
        with log.open("wb") as sink:
            writer = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=sink) if piped else None
            output = writer.stdin if writer is not None and writer.stdin is not None else sink
            process: subprocess.Popen[bytes] | Forked
            if forked and before is None:
                process = forks.start(command, REPO, given, output)
            else:
                process = subprocess.Popen(
                    [sys.executable, *command], cwd=REPO, env=given, stdout=output, stderr=subprocess.STDOUT, preexec_fn=before
                )
        if writer is not None and writer.stdin is not None:
            writer.stdin.close()
        runs.append(Run(tmp_path / "output", process, log))
        return runs[-1]

    yield start
    for run in runs:
        if run.process.poll() is None:
            family = descendants(run.process.pid)
            for pid in (run.process.pid, *family):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            run.process.wait()


def check_accounts(run_dir: Path, validated: tuple[int, ...] | None = (0, 6, 12)) -> None:
    """That a finished run lost nothing and doubled nothing, from what it wrote down. `validated`: None where chance decides which
    versions an explorer was there to validate."""
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["reason"], summary["steps"]) == ("finished", "", STEPS)

    rows = read_json_lines(run_dir / "groups.jsonl")
    trained = [row for row in rows if row["status"] == "trained"]
    dropped = [row for row in rows if row["status"] == "dropped"]
    assert len(trained) + len(dropped) == len(rows)
    assert all(row["reason"] for row in dropped)
    assert max(Counter(row["group_id"] for row in rows).values()) == 1, "a group has two statuses"
    served = [row for row in rows if row["reason"] not in GIVEN_BACK]
    assert max(Counter(row["prompt_uid"] for row in served).values()) == 1, "a prompt has two statuses"
    assert Counter(row["step"] for row in trained) == dict.fromkeys(range(1, STEPS + 1), BATCH)
    assert all(0 <= row["lag"] <= 1 for row in trained)

    # The order of prompts is fixed, and at the end every prompt that was taken has ended: whole epochs, then a part.
    epochs = Counter(int(row["prompt_uid"].split("/")[1]) for row in served)
    whole, part = divmod(len(served), PROMPTS)
    assert whole, "the run is too short to complete an epoch"
    assert [epochs[i] for i in range(whole)] == [PROMPTS] * whole, "prompts of an epoch are lost"
    assert epochs[whole] == part

    assert list(violations(read_run(run_dir))) == []

    groups = summary["groups"]
    assert (groups["trained"], groups["buffered"], groups["in_flight"]) == (STEPS * BATCH, 0, 0)
    assert groups["dropped"] == Counter(row["reason"] for row in dropped)
    assert groups["admitted"] == len(rows)
    assert groups["dropped"], "the filter dropped nothing: the test is blind"

    metrics = read_json_lines(run_dir / "metrics.jsonl")
    assert [row["step"] for row in metrics if "actor_train/lr" in row] == list(range(1, STEPS + 1))
    assert sum(summary["staleness"]["histogram"].values()) == STEPS * BATCH * GROUP
    if validated is not None:
        assert [entry["step"] for entry in summary["validation"]] == list(validated)


@pytest.fixture(scope="session")
def accounts() -> Callable[..., None]:
    return check_accounts


@pytest.fixture(scope="session")
def faults() -> Any:
    """This module, for others that cannot import it."""
    return sys.modules[__name__]
