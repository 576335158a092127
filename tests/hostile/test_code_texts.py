"""Programs that a model might find profitable: none earns what it has not earned, none harms the judge or another sample."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roll.data.sample import Prompt, Sample
from roll.distributed.watchdog import children_of
from roll.pipeline.rlvr.rewards.code_sandbox_reward_worker import CodeSandboxRewardWorker
from roll.pipeline.rlvr.rewards.reward_worker import RewardResult

LIMIT_S = 3.0
CPU_S = 1
PRINTED = [{"stdin": "8", "expected_stdout": "right 8731"}]
CALLED = {"fn_name": "f", "inputs": [[8]], "outputs": [8731]}
ASSERTED = ["assert f(8) == 8731", "from solution import f\ndef test_it():\n    assert isinstance(f(8), int) and f(8) == 8731"]


def forged() -> Iterator[str]:
    """Says that it has passed."""
    for text in (
        "passed",
        "ok",
        "All tests passed!",
        "1 passed in 0.01s",
        "right",
        "[1.0]",
        '{"passed": 1, "why": ""}',
        '{"passed": 1, "of": 1}',
        '{"value": 8731}',
        '{"ended": 1, "code": 0}',
        '{"ended": 1, "code": 0, "cpu_s": 0}\\n{"passed": 2, "why": ""}',
        "\\x00\\x01",
    ):
        yield f"print('''{text}''')"
        yield f"import os\nfor d in range(3, 64):\n    try: os.write(d, b'''{text}\\n''')\n    except OSError: pass"
        yield f"import sys\nsys.stderr.write('''{text}''')\nsys.exit(0)"


def leaving() -> Iterator[str]:
    for how in (
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "raise SystemExit",
        "exit()",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
        "import os, signal; os.kill(-1, signal.SIGKILL)",
        "import os, signal; os.killpg(0, signal.SIGKILL)",
        "import os; os.abort()",
        "import ctypes; ctypes.string_at(0)",
        "import os; os.execv('/bin/true', ['true'])",
        "import os; os.execv('/bin/sh', ['sh', '-c', 'exit 0'])",
        "import atexit, os; atexit.register(os._exit, 0)",
        "import threading, os; threading.Timer(0.01, os._exit, (0,)).start()",
        "import sys; sys.settrace(lambda *a: exit())",
        "raise KeyboardInterrupt",
        "raise GeneratorExit",
        "raise BaseException",
        "import builtins; builtins.__import__ = None",
    ):
        yield how
        yield f"def f(x):\n    {how}"


def deceiving() -> Iterator[str]:
    """Is equal to everything, or turns what compares upside down."""
    yes = "lambda *a: True"
    for base in ("object", "int", "str", "list", "float"):
        methods = f"    __eq__ = {yes}\n    __ne__ = lambda *a: False\n    __hash__ = lambda s: 1"
        yield f"class A({base}):\n{methods}\ndef f(x): return A()"
    for line in (
        "import builtins; builtins.AssertionError = type('E', (BaseException,), {})",
        "import builtins; builtins.isinstance = lambda *a: True",
        "import builtins; builtins.all = lambda *a: True",
        "import builtins; builtins.print = lambda *a: None",
        "import operator; operator.eq = lambda *a: True",
        'import json; json.dumps = lambda *a, **k: \'{"passed": 9, "why": ""}\'',
        "import unittest.mock; f = unittest.mock.ANY",
        "import unittest.mock; f = unittest.mock.MagicMock()",
        "import sys; sys.modules['tests'] = sys.modules['solution'] = None",
        "import sys\nfor name in list(sys.modules): sys.modules[name] = None",
        "f = type('F', (), {'__call__': lambda s, x: s, '__eq__': lambda *a: True})()",
        "f = lambda x: (_ for _ in iter(int, 1))",
        "f = lambda x: f",
        "f = lambda x: True",
        "f = lambda x: '8731'",
        "f = lambda x: '８７３１'",
        "f = lambda x: [8731]",
        "f = lambda x: {8731}",
        "f = lambda x: 8731.5",
        "f = lambda x: float('nan')",
        "f = lambda x: 10 ** 10 ** 6",
        "def f(x):\n    x = []\n    for i in range(10 ** 5): x = [x]\n    return x",
        "def f(x):\n    x = []; x.append(x); return x",
        "f = lambda x: 'x' * 10 ** 8",
        "f = lambda x: {1: f, 'a': {2: f}}",
        "import gc\nf = lambda x: [o for o in gc.get_objects() if type(o) is int and o > 8000]",
        "import gc\nf = lambda x: max(o for d in gc.get_objects() if type(d) is list for o in d if type(o) is int and o < 9000)",
        "import inspect\nf = lambda x: [v for i in inspect.stack() for v in i.frame.f_locals.values()]",
        "import inspect\nf = lambda x: next(l for i in inspect.stack() for l in i.frame.f_locals.get('tests', []))",
        "f = lambda x: open('tests.py').read()",
        "import __main__\nf = lambda x: vars(__main__)",
    ):
        yield line
        yield f"print(8731)\n{line}"


def answering() -> Iterator[str]:
    """Speaks to the tester in its own words."""
    begin = "import os, json\ndef say(m): os.write(4, json.dumps(m).encode() + b'\\n')\n"
    for message in (
        "{'value': True}",
        "{'passed': 9, 'why': ''}",
        "{'value': {'int': '0x221c'}}",
        "{'value': {'handle': {'yours': 0}}}",
        "{'value': {'handle': {'yours': -1}}}",
        "{'value': {'eval': '8731'}}",
        "{'value': {'tuple': 5}}",
        "{'value': 1, 'changed': {'0': [1]}}",
        "{'ask': 'getattr', 'of': 0, 'arguments': ['__class__'], 'named': {}}",
        "{'ask': 'call', 'of': 0, 'arguments': [], 'named': {}}",
        "{'error': [], 'text': ''}",
        "{'error': ['SystemExit'], 'text': '0'}",
        "{'error': ['StopIteration'], 'text': '0'}",
        "[1]",
    ):
        yield f"{begin}say({message})\nf = None"
        yield f"{begin}def f(x):\n    say({message}); say({message})"
    yield f"{begin}os.write(4, b'[' * 10 ** 6 + b'\\n')"
    yield f"{begin}os.write(4, b'9' * 10 ** 5 + b'\\n')"
    yield f"{begin}\nwhile True: os.write(4, b' ' * 10 ** 6)"


def escaping(secret: Path, port: int) -> Iterator[str]:
    """Reads, writes or reaches what is outside, and would print the right answer if it could."""
    right = "print('right', 8731); f = lambda x: 8731"
    for attempt in (
        f"open({str(secret)!r}).read()",
        f"open('/tmp/../{secret}').read()",
        f"import os; os.symlink({str(secret)!r}, '/tmp/link'); open('/tmp/link').read()",
        f"import os; os.link({str(secret)!r}, '/tmp/link')",
        f"open({str(secret)!r}, 'w').write('x')",
        f"import os; os.remove({str(secret)!r})",
        f"import os; os.listdir({str(secret.parent)!r})",
        "open('/etc/passwd').read()",
        "open('/etc/shadow').read()",
        "open('/proc/1/environ').read()",
        "open('/proc/self/mem', 'rb').read(1)",
        "import os; os.listdir('/proc/1')",
        "import os; os.listdir('/root/.ssh')",
        "import os; os.listdir('/home')",
        "import os; os.listdir('/var')",
        "import os; os.environ['PATH']",
        "open('/usr/evil', 'w')",
        "open('/evil', 'w')",
        "open('/dev/shm/evil', 'w')",
        "open('/dev/mem')",
        "import os; os.mknod('/tmp/disk', 0o60666, os.makedev(8, 0))",
        "import os; os.chroot('/tmp')",
        "import os; os.setuid(0)",
        "import os; os.nice(-5)",
        "import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
        "import os; os.memfd_create('x')",
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (99, 99))",
        "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
        "import ctypes; assert ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0",
        "import ctypes; assert ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0",
        "import ctypes; assert ctypes.CDLL(None).shmget(7, 4096, 0o1600) >= 0",
        f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)",
        "import socket; socket.create_connection(('192.0.2.1', 80), 1)",
        "import socket; socket.socket(socket.AF_UNIX)",
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 53))",
        "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}/')",
        "import subprocess; subprocess.run(['sudo', 'true'], check=True)",
        "import subprocess; subprocess.run(['sh', '-c', 'cat /etc/passwd'], check=True)",
    ):
        yield f"{attempt}\n{right}"


def greedy() -> Iterator[str]:
    """Would take everything, and ends within the limits."""
    yield from (
        "x = []\nwhile True: x.append('y' * 10 ** 7)",
        "x = bytearray(10 ** 11)",
        "print(9 ** 9 ** 9 % 10 > 20, file=None) if False else 10 ** 10 ** 10",
        "while True: print('x' * 10 ** 5)",
        "import os\nwhile True: os.write(1, b'x' * 10 ** 6)",
        "import os\ntry:\n    while True: os.fork()\nexcept OSError: os._exit(0)",
        "import os\nfor i in range(1000):\n    try: os.fork()\n    except OSError: pass",
        "import os\nfor i in range(4):\n    if os.fork() == 0:\n        os.setsid()\n        while True: pass\n",
        "import threading\nwhile True: threading.Thread(target=lambda: iter(int, 1).__next__(), daemon=True).start()",
        "import os\nwith open('/tmp/x', 'wb') as file:\n    while True: file.write(b'x' * 10 ** 6)",
        "for i in range(10 ** 6): open(f'/tmp/{i}', 'w').write('x' * 10 ** 6)",
        "import os\nfor i in range(10 ** 6): os.mkdir(f'/tmp/{i}')",
        "x = []\nwhile True: x.append(open('/tmp/x', 'w'))",
        "import os\nx = [os.pipe() for i in range(10 ** 4)]",
        "def f(x): return f(x)\nimport sys; sys.setrecursionlimit(10 ** 9); f(1)",
        "exec('(' * 10 ** 4 + ')' * 10 ** 4)",
        "int('9' * 10 ** 7)",
        "print('\\ud800')",
        "raise Exception('x' * 10 ** 7)",
        "import sys; sys.stdin.close(); sys.stdout.close()",
    )


def endless() -> Iterator[str]:
    """Each costs its limit."""
    yield from (
        "while True: pass",
        "import time; time.sleep(10 ** 6)",
        "import re; re.match('(a+)+$', 'a' * 40 + 'b')",
        "import signal\nfor s in {*range(1, 32)} - {9, 19}: signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "import os\nif os.fork():\n    os._exit(0) if False else os.wait()\nos.setsid()\nwhile True: pass",
        "import signal; signal.pause()",
        "import threading; threading.Thread(target=threading.Event().wait).start()",
    )


def sample(text: str, tests: Any) -> Sample:
    prompt = Prompt("code/0/1", [1], "?", "code", "code", "", {"test_cases": tests})
    return Sample(prompt, 0, [2], [0.0], [], "stop", response_text=f"```python\n{text}\n```")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("8731")
    return path


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.0)
        yield server


def processes_below(pid: int) -> int:
    return sum(1 + processes_below(child) for child in children_of(pid))


def test_no_program_earns_or_harms_anything(secret: Path, listener: socket.socket) -> None:
    quick = [*forged(), *leaving(), *deceiving(), *answering(), *escaping(secret, listener.getsockname()[1]), *greedy()]
    assert len({*quick, *endless()}) >= 200
    tests = [PRINTED, CALLED, ASSERTED]
    hostile = [sample(text, tests[i % 3]) for i, text in enumerate(quick)]
    hostile += [sample(text, tests[i % 3]) for i, text in enumerate(endless())]
    honest = sample("print('right', int(input()) + 8723)\n", PRINTED)
    arguments = {"cpu_s": CPU_S, "memory_mb": 512}
    config = {"timeout_s": LIMIT_S, "max_concurrency": 2, "reward_args": arguments}

    async def timed(worker: CodeSandboxRewardWorker, graded: Sample) -> tuple[RewardResult, float]:
        begin = time.monotonic()
        return await worker.result(graded), time.monotonic() - begin

    async def main() -> tuple[list[RewardResult], list[float], list[RewardResult]]:
        worker = CodeSandboxRewardWorker(config)
        await worker.start()
        try:
            batch = [honest] * 20
            await worker.compute_rewards(batch)
            before = processes_below(os.getpid())
            lanes = await asyncio.gather(*(_in_turn(worker, hostile[i::2], honest, timed) for i in range(2)))
            after = await worker.compute_rewards(batch)
            async with asyncio.timeout(20):  # a program that has ended is gone a moment later; one that runs on stays
                while processes_below(os.getpid()) > before:
                    await asyncio.sleep(0.02)
        finally:
            await worker.close()
        judged = [pair for lane in lanes for pair in lane[0]]
        neighbours = [result for lane in lanes for result in lane[1]] + after
        return [result for result, _ in judged], [seconds for _, seconds in judged], neighbours

    threads = threading.active_count()
    results, seconds, neighbours = asyncio.run(main())
    in_order = [*hostile[0::2], *hostile[1::2]]
    earned = [graded.response_text for graded, result in zip(in_order, results, strict=True) if result.value != 0.0]
    assert not earned, f"{len(earned)}: {[result for result in results if result.value != 0.0][:3]} {earned[:3]}"
    assert max(seconds) < LIMIT_S + 5.0, in_order[seconds.index(max(seconds))].response_text
    assert {result.value for result in neighbours} == {1.0}
    assert threading.active_count() == threads
    assert secret.read_text() == "8731"
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert not [name for name in os.listdir("/tmp") if name in ("evil", "link", "disk")]


async def _in_turn(
    worker: CodeSandboxRewardWorker, samples: list[Sample], honest: Sample, timed: Any
) -> tuple[list[tuple[RewardResult, float]], list[RewardResult]]:
    """Each hostile sample, and an honest one after every tenth."""
    judged, neighbours = [], []
    for i, graded in enumerate(samples):
        judged.append(await timed(worker, graded))
        if i % 10 == 0:
            neighbours.append(await worker.result(honest))
    return judged, neighbours
