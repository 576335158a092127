"""What a program may take and leave behind, with namespaces and without: of memory, files, processes, and of its judge's time."""

import contextlib
import json
import os
import select
import signal
import tempfile
from pathlib import Path

import pytest
from code_samples import CONFIG, DOUBLE, DOUBLED, FORBIDDEN, sample
from judged import judged

from roll.graders import code_judge
from roll.graders.code_rule import CodeSandboxRewardWorker
from roll.graders.code_rule import tests_of as read_tests
from roll.graders.sandbox import forker, landlock, sandbox, usage
from roll.graders.sandbox.sandbox import BUILT_IN
from roll.graders.sandbox.usage import Limits

pytestmark = pytest.mark.slow

FORK = "import os, time\nchild = os.fork()\n"
WITHOUT_NAMESPACES = [
    (DOUBLE, ""),
    ("import os; open('x', 'w').write('6'); print(open('x').read() if os.getcwd() == os.environ['HOME'] else 'elsewhere')", ""),
    (f"{FORK}if child == 0:\n    os.setsid()\n    time.sleep(999)\nprint(6)", ""),
    ("import socket; socket.socket(); print(6)", "exit code 1"),
    (f"{FORK}while True: pass", "too much time"),
]
ENCLOSED = [
    "print(open('/etc/passwd').read())",
    "import os; os.listdir('/')",
    "import os; open(f'/proc/{os.getppid()}/environ').read()",
    "import os; open(f'/proc/{os.getppid()}/mem', 'r+b')",
    "open('/var/tmp/evil', 'w')",
    "import os, tempfile; open(os.path.join(os.path.dirname(tempfile.gettempdir()), 'evil'), 'w')",
]
"""What belongs to the same user, or to all."""


def test_where_namespaces_are_forbidden_the_rest_holds_and_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a program leaves behind is ended with it, in another session, too; its folder is removed."""
    monkeypatch.setattr(sandbox, "_FORKER", FORBIDDEN + sandbox._FORKER)
    monkeypatch.setattr(code_judge, "_nothing", lambda _: None)
    shut_in = sandbox.Sandbox()
    try:
        assert "forbidden here" in shut_in.missing[0] and "read-only root" not in str(shut_in.in_force)
        folders = {*Path(tempfile.gettempdir()).iterdir()}
        for source in ENCLOSED if landlock.version() else []:
            assert code_judge._by_output(shut_in, source, "3", "6", Limits(wall_s=2.0)) == "exit code 1", source
        if landlock.version() >= landlock.SIGNALS_FROM:
            stop = "import os; os.kill(os.getppid(), 0)"
            assert code_judge._by_output(shut_in, stop, "3", "6", Limits(wall_s=2.0)) == "exit code 1"
        for source, failure in WITHOUT_NAMESPACES:
            assert code_judge._by_output(shut_in, source, "3", "6", Limits(wall_s=2.0)) == failure, source
        left = {*Path(tempfile.gettempdir()).iterdir()} - folders
        assert not [path for path in left if path.is_dir() and (path / "x").exists()]
        children = Path(f"/proc/{shut_in._process.pid}/task/{shut_in._process.pid}/children").read_text()
        assert children == ""
    finally:
        shut_in.close()


EATS = """
import os, time
for _ in range(4):
    if os.fork() == 0: break
taken = bytearray(900 << 20)
for i in range(0, len(taken), 4096): taken[i] = 1
time.sleep(999)
"""
"""Five processes, each within its own limit, whose memory takes seconds to be given back."""


def test_what_an_answer_causes_itself_earns_0() -> None:
    """All its memory and all its time are no reason to leave it unjudged: 100 such samples would end a run."""
    worker = CodeSandboxRewardWorker({**CONFIG, "timeout_s": 5.0})
    graded = judged(worker, [sample(EATS, DOUBLED), sample(f"def f():\n    {EATS!r}\n" + EATS, ["assert f() == 1"])])
    assert [(result.value, result.error) for result in graded] == [(0.0, None)] * 2


def test_what_is_left_of_an_answer_does_not_decide_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end may take longer than the judge waits: then another sandbox judges the next one."""
    item = {"source": "while True: pass", "tests": read_tests({"tests": DOUBLED}, ""), "go_on": False, "limit_s": 0.5}
    item |= {"limits": {"wall_s": 0.5}, "isolation": BUILT_IN}
    before = code_judge._sandbox(BUILT_IN)
    monkeypatch.setattr(sandbox.select, "select", lambda *_: ([], [], []))  # nothing is heard of its end
    assert code_judge.judge(item) == {"passed": 0, "of": 1, "why": "too much time"}
    monkeypatch.undo()
    assert code_judge.judge({**item, "source": DOUBLE, "limit_s": 5.0, "limits": {"wall_s": 5.0}})["passed"] == 1
    assert before.stuck and code_judge._sandbox(BUILT_IN) is not before
    code_judge._end(code_judge._sandbox(BUILT_IN))


LEAVES = """
import os
waiting, go_on = os.pipe()
child = os.fork()
if child == 0:
    try: os.setsid()
    except OSError: pass
    if os.fork(): os._exit(0)
    os.read(waiting, 1)
else:
    os.waitpid(child, 0)
    print("started", flush=True)
    os.write(go_on, b"x")
while True:
    try: os.fork()
    except OSError: pass
"""


@pytest.mark.parametrize("unread", [False, True])
def test_with_the_judge_all_ends_that_a_program_has_started(unread: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no process namespace ends it: what has lost its parent, too, and its folder; whatever the judge has left unread."""
    monkeypatch.setattr(sandbox, "_FORKER", FORBIDDEN + sandbox._FORKER)
    shut_in = sandbox.Sandbox()
    with contextlib.closing(shut_in):
        if unread:
            started(shut_in, "")
            select.select([shut_in._connection], [], [])
        assert os.read(started(shut_in, LEAVES)[1], 100) == b"started\n"
        below = list(usage.below(shut_in._process.pid))
        assert len(below) >= 2
    assert not [pid for pid in below if Path(f"/proc/{pid}").exists()] and not Path(shut_in._place).exists()


FULL = """
import os, sys
pipes = os.pipe()
children = []
try:
    while True:
        child = os.fork()
        if child == 0:
            os.read(pipes[0], 1)
        children.append(child)
except OSError:
    print(len(children), flush=True)
os.read(pipes[0], 1)
"""
THREAD = """
import threading
print("here", flush=True)
input()
thread = threading.Thread(target=print, args=("there",)); thread.start(); thread.join()
"""


def test_programs_of_one_user_have_each_their_own_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the machine gives neither namespaces nor users: one that has all it may keeps no other from starting a thread."""
    one_user = "namespaces.users_of_their_own = lambda count: None\n"
    monkeypatch.setattr(sandbox, "_FORKER", FORBIDDEN + one_user + sandbox._FORKER)
    with contextlib.closing(sandbox.Sandbox()) as honest, contextlib.closing(sandbox.Sandbox()) as hostile:
        assert not any(layer.startswith("users") for layer in honest.in_force)
        go_on, says = started(honest, THREAD)
        assert os.read(says, 100) == b"here\n"
        _, counts = started(hostile, FULL)
        assert os.read(counts, 100) == b"4\n"
        os.write(go_on, b"\n")
        assert os.read(says, 100) == b"there\n"


ORPHAN = """
import os
if os.fork() == 0:
    print("here", flush=True)
input()
"""


def test_what_a_killed_forker_has_left_takes_no_process_from_the_next_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """The users of its programs are free again, but one of them has a process, which would be counted with the next program's."""
    if os.getuid() != 0:
        pytest.skip("only root gives programs users of their own")
    monkeypatch.setattr(sandbox, "_FORKER", FORBIDDEN + sandbox._FORKER)
    with contextlib.closing(sandbox.Sandbox()) as killed:
        go_on, says = started(killed, ORPHAN)
        assert os.read(says, 100) == b"here\n"
        os.kill(killed._process.pid, signal.SIGKILL)
        killed._process.wait(20)
        with contextlib.closing(sandbox.Sandbox()) as next_one:
            _, counts = started(next_one, FULL)
            assert os.read(counts, 100) == b"4\n"
        os.close(go_on)


def started(shut_in: sandbox.Sandbox, source: str) -> tuple[int, int]:
    """Its input and its output."""
    (reads, go_on), (says, writes) = os.pipe(), os.pipe()
    given = sandbox.in_memory(json.dumps({"source": source, "is_program": True}).encode())
    shut_in._start_all([sandbox.Program(code_judge.SOLUTION, [reads, writes, given])], Limits())
    return go_on, says


@pytest.mark.parametrize("namespaces", [True, False])
def test_when_memory_is_short_programs_end_before_their_forker(namespaces: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_FORKER", ("" if namespaces else FORBIDDEN) + sandbox._FORKER)
    with contextlib.closing(sandbox.Sandbox()) as shut_in:
        assert namespaces is not bool(shut_in.missing)
        assert os.read(started(shut_in, THREAD)[1], 100) == b"here\n"
        forkers = {shut_in._process.pid, *shut_in._forkers}
        while len(programs := {*usage.below(shut_in._process.pid)} - forkers) > 1:
            pass  # the process that has started the program ends at once, but on a busy machine not before the program speaks
        (program,) = programs
        rank = {each: int(Path(f"/proc/{each}/oom_score_adj").read_text()) for each in (program, *forkers)}
        assert rank.pop(program) == forker.MORE_OOM > max(rank.values())


HEADLESS = """
import os, mmap, time, threading, ctypes
for _ in range(4):
    if os.fork() == 0: break
def fill():
    time.sleep(0.3)
    x = mmap.mmap(-1, 90 << 20)
    for i in range(0, len(x), 4096): x[i] = 1
    time.sleep(999)
threading.Thread(target=fill).start()
ctypes.CDLL(None).syscall(60, 0)
"""
UNLINKED = """
import os, mmap, time
kept = []
for i in range(20):
    file = open('x', 'w+b'); os.remove('x'); file.write(b'x' * (8 << 20)); file.flush()
    kept.append(KEPT)
    del file
time.sleep(999)
"""
HIDING = {
    "behind a first thread that has ended": (HEADLESS, "memory"),
    "in files without a name": (UNLINKED.replace("KEPT", "file"), "files"),
    "in files without a name or a descriptor": (UNLINKED.replace("KEPT", "mmap.mmap(file.fileno(), 0)"), "files"),
}


@pytest.mark.parametrize("where", HIDING)
def test_what_a_program_hides_is_counted(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_FORKER", FORBIDDEN + "import ctypes, mmap, threading\n" + sandbox._FORKER)
    monkeypatch.setattr(code_judge, "_nothing", lambda _: None)
    source, exceeded = HIDING[where]
    with contextlib.closing(sandbox.Sandbox()) as shut_in:
        limits = Limits(wall_s=8.0, memory_mb=384, processes=9)
        assert code_judge._by_output(shut_in, source, "", "", limits) == f"too much {exceeded}"


MOST = """
import os, mmap
ends, held, processes = os.pipe(), [], 1
try:
    while os.fork(): processes += 1
    os.close(ends[1])
    os.read(ends[0], 1)
    os._exit(0)
except OSError:
    pass
try:
    while True: held.append(mmap.mmap(-1, 1 << 20))
except OSError:
    print(processes, len(held))
"""


@pytest.mark.parametrize("namespaces", [True, False])
def test_between_two_looks_the_limits_of_each_process_hold(namespaces: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which bounds what a sample may have in memory at any moment."""
    begin = "import mmap\n" if namespaces else f"{FORBIDDEN}import mmap\nnamespaces.users_of_their_own = lambda count: None\n"
    monkeypatch.setattr(sandbox, "_FORKER", begin + sandbox._FORKER)
    limits = Limits(memory_mb=256, processes=3, wall_s=20.0)
    with contextlib.closing(sandbox.Sandbox()) as shut_in:
        assert namespaces is not bool(shut_in.missing)
        ending = code_judge._run_program(shut_in, {"source": MOST}, b"", limits)
    processes, megabytes = map(int, ending.output.split())
    assert 4 <= processes <= (6 if namespaces else 4) and 100 < megabytes < 256


@pytest.mark.parametrize("chosen", ["bubblewrap", ["bwrap", "--unshare-all", "--"]])
def test_a_tool_is_looked_for_where_this_process_finds_it(
    chosen: str | list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What starts it has no PATH."""
    (tmp_path / "bwrap").write_text("#!/bin/sh")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    words = sandbox.begin_of(sandbox.checked(chosen), "/place")
    assert words[0] == str(tmp_path / "bwrap") and "--unshare-all" in words and words[-1] == "--"


def test_a_process_that_ends_while_it_is_looked_at_ends_no_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder may still be there, with no thread in it. This process stands for it, which may be large."""
    with monkeypatch.context() as patch:
        patch.setattr(usage, "below", lambda forker: iter([os.getpid()]))
        patch.setattr(usage.os, "listdir", lambda path: [])
        assert usage.exceeded(0, set(), [], Limits(memory_mb=1 << 20)) == ""
