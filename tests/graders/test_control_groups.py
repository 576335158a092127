"""The kernel's bound on what a sample's processes have in memory together, where this user may make control groups."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from code_samples import DOUBLE, DOUBLED, FORBIDDEN, results, sample

from roll.graders import code_judge
from roll.graders.sandbox import control_groups, sandbox, usage
from roll.graders.sandbox.control_groups import ControlGroup
from roll.graders.sandbox.usage import Limits

pytestmark = pytest.mark.slow

LIMITS = Limits(memory_mb=512, processes=5, file_mb=1, wall_s=20.0)
BOUND = (512 + 2 * 8) << 20
TAKES = f"""
import os
holds, _ = os.pipe()
for _ in range(5):
    if os.fork() == 0:
        taken = bytearray({384 << 20})
        for i in range(0, len(taken), 4096): taken[i] = 1
        os.read(holds, 1)
os.wait()
print(6)
"""
"""Five processes, each within its own limit, and a first one that has the right answer when one of them has ended."""


ORPHAN = """
import os, time
if os.fork() == 0:
    print("here", flush=True)
time.sleep(60)
"""


def group_of(shut_in: sandbox.Sandbox) -> ControlGroup:
    if shut_in._group is None:
        pytest.skip("no control group is handed on to this user")
    return shut_in._group


def peak(group: ControlGroup) -> int:
    names = ("memory.peak", "memory.max_usage_in_bytes")
    return next(int(path.read_text()) for path in (group._folder / name for name in names) if path.exists())


@pytest.mark.parametrize("namespaces", [True, False])
def test_the_processes_of_a_sample_never_have_more_than_the_bound(namespaces: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's own count says so, and nobody looks meanwhile. The forker lives on; the answer has earned nothing."""
    monkeypatch.setattr(sandbox, "_FORKER", ("" if namespaces else FORBIDDEN) + sandbox._FORKER)
    monkeypatch.setattr(sandbox, "LOOK_S", 999.0)
    with contextlib.closing(sandbox.Sandbox()) as shut_in, contextlib.closing(sandbox.Sandbox()) as other:
        group = group_of(shut_in)
        assert control_groups.IN_FORCE in shut_in.in_force and namespaces is not bool(shut_in.missing)
        for _ in range(2):
            # Where the group is full before the last fork, that may be refused instead: exit code 1.
            assert code_judge._by_output(shut_in, TAKES, "", "6", LIMITS) in ("too much memory", "exit code 1")
            assert 512 << 20 < peak(group) <= BOUND
            assert code_judge._by_output(shut_in, DOUBLE, "3", "6", LIMITS) == ""
            assert code_judge._by_output(other, DOUBLE, "3", "6", LIMITS) == ""
        assert peak(group_of(other)) < 100 << 20
    assert not group._folder.exists() and not group_of(other)._folder.exists()


def test_a_forker_that_was_ended_for_memory_leaves_no_answer_unjudged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are ended before it: this one, of whose processes one starts none, is made to be the first."""
    monkeypatch.setattr(sandbox, "_FORKER", "from roll.graders.sandbox import forker; forker.MORE_OOM = 0\n" + sandbox._FORKER)
    monkeypatch.setattr(sandbox, "LOOK_S", 999.0)
    with contextlib.closing(sandbox.Sandbox()) as shut_in:
        group_of(shut_in)
        if shut_in.missing:
            pytest.skip("without namespaces the forker is one process, whose programs are as it is")
        Path(f"/proc/{shut_in._process.pid}/oom_score_adj").write_text("1000")
        assert code_judge._by_output(shut_in, TAKES, "", "6", LIMITS) == "too much memory"
        assert shut_in.stuck and shut_in._process.wait(20) == -signal.SIGKILL


def test_what_has_lost_its_forker_ends_with_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no process namespace ends it, and no parent's end."""
    monkeypatch.setattr(sandbox, "_FORKER", FORBIDDEN + sandbox._FORKER)
    with contextlib.closing(sandbox.Sandbox()) as shut_in:
        group_of(shut_in)
        reads, writes = os.pipe()
        given = sandbox.in_memory(json.dumps({"source": ORPHAN, "is_program": True}).encode())
        shut_in._start_all([sandbox.Program(code_judge.SOLUTION, [os.open("/dev/null", os.O_RDWR), writes, given])], Limits())
        assert os.read(reads, 100) == b"here\n"
        programs = {*usage.below(shut_in._process.pid)}
        assert len(programs) == 2
        os.kill(shut_in._process.pid, signal.SIGKILL)
    assert os.read(reads, 100) == b"", "a program holds the other end"
    assert not group_of(shut_in)._folder.exists()


def test_honest_samples_beside_it_are_judged_and_no_group_is_left() -> None:
    given = [sample(TAKES, [{"stdin": "", "expected_stdout": "6\n"}]), sample(DOUBLE, DOUBLED)]
    graded = results(given * 2, memory_mb=512, processes=5)
    assert [(result.value, result.error) for result in graded] == [(0.0, None), (1.0, None)] * 2
    assert not [*of_ended_makers()]


def of_ended_makers() -> Iterator[Path]:
    for place, _ in control_groups._places():
        for folder in place.glob(f"{usage.PREFIX}*"):
            if not Path("/proc", folder.name.split("-")[2]).exists():
                yield folder


MAKES = """
from roll.graders.sandbox.sandbox import Sandbox
shut_in = Sandbox()
print(shut_in._group and shut_in._group._folder, flush=True)
input()
"""


def test_the_next_start_removes_what_a_killed_judge_has_left() -> None:
    judge = subprocess.Popen([sys.executable, "-P", "-c", MAKES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with judge:
        assert judge.stdout is not None
        left = Path(judge.stdout.readline().strip())
        with contextlib.closing(sandbox.Sandbox()) as beside:
            group_of(beside)
            assert left.exists()
        ends = [os.pidfd_open(int(process)) for process in (left / "cgroup.procs").read_text().split()]
        judge.send_signal(signal.SIGKILL)
    for each in ends:
        assert select.select([each], [], [], 20)[0]
        os.close(each)
    assert left.exists()
    sandbox.Sandbox().close()
    assert not left.exists()


def test_where_no_group_may_be_made_it_is_said_and_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_groups, "_places", lambda: iter([(Path("/proc/self"), control_groups._V2)]))
    with contextlib.closing(sandbox.Sandbox()) as shut_in:
        assert control_groups.WATCHED in shut_in.in_force and "memory" not in str(shut_in.missing)
        assert code_judge._by_output(shut_in, TAKES, "", "6", LIMITS) == "too much memory"
