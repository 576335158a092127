"""Programs that lie in wait: for the tester, for what runs beside or after them, for the moment between a look and a deed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hostile_programs import RIGHT

EVERY_PROCESS = """
import os, ctypes
c = ctypes.CDLL(None, use_errno=True)
others = {*range(1, 40000)} - {os.getpid()}
def opens(path):
    try: return open(path, "r+b") is not None
    except OSError: return False
"""
MACHINE_CODE = """
import ctypes, mmap
def run(code):
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(code)
    return ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""
ANSWERS = """
import json, os, socket
tester = socket.socket(fileno=4)
def say(message): tester.send(json.dumps(message).encode() + b"\\n")
def asked(): return json.loads(tester.makefile("rb").readline())
"""


def reaching(secret: Path) -> Iterator[str]:
    """Reads or changes another process, or a file, by a way that is not a call's plain use; succeeds, or has no answer."""
    for attempt in (
        "done = [p for p in others if c.ptrace(16, p, 0, 0) == 0]",
        "done = [p for p in others if c.syscall(101, 0x4206, p, 0, 0) == 0]",
        "done = [p for p in others if c.process_vm_readv(p, 0, 0, 0, 0, 0) == 0]",
        "done = [p for p in others if opens(f'/proc/{p}/mem')]",
        "done = [p for p in others if opens(f'/proc/{p}/fd/3')]",
        "done = [p for p in others if c.syscall(434, p, 0) >= 0]",
        "done = [p for p in others if p > 1 and c.kill(p, 0) == 0]",
        "done = [p for p in others if c.syscall(302, p, 7, 0, ctypes.create_string_buffer(16)) == 0]",
        "done = [p for p in others if os.path.islink(f'/proc/{p}/root') and os.listdir(f'/proc/{p}/root')]",
        "done = c.syscall(434, os.getppid(), 0) >= 0",
        "os.killpg(os.getpgid(os.getppid()), 9); done = os.getppid() != 0",
        "os.kill(os.getppid(), 19); done = os.getppid() != 0",
    ):
        yield f"{EVERY_PROCESS}{attempt}\nif not done: raise OSError('refused')\n{RIGHT}"
    file, folder = repr(str(secret)), repr(str(secret.parent))
    for attempt in (
        f"fd = os.open({folder}, os.O_PATH); os.open('secret', os.O_RDONLY, dir_fd=fd)",
        f"os.symlink({folder}, 'd'); open('d/secret').read()",
        f"os.symlink({folder}, 'd'); os.rename('d', 'e'); os.listdir('e')",
        f"os.symlink({file}, 's'); os.open('s', os.O_WRONLY)",
        f"os.open({file}, os.O_PATH); os.link({file}, 'hard', follow_symlinks=False)",
        f"os.rename({file}, 'stolen')",
        f"subprocess.run(['ln', {file}, 'hard'], check=True)",
        f"import sqlite3; sqlite3.connect({file}).execute('select 1 from sqlite_master')",
        f"ctypes.CDLL({file})",
        "os.open('.', os.O_TMPFILE | os.O_RDWR); os.link('/proc/self/fd/5', '/tmp/../var/tmp/evil')",
        "open('/proc/self/mem', 'r+b').write(b'x')",
        "open('/proc/self/oom_score_adj', 'w').write('-1000')",
        "open('/proc/self/attr/current', 'w').write('unconfined')",
        "open('/proc/sys/kernel/core_pattern', 'w').write('|/bin/sh')",
        "open('/sys/fs/cgroup/cgroup.procs', 'w').write(str(os.getpid()))",
        "os.open('/dev/ptmx', os.O_RDWR)",
        "os.open('/dev/fuse', os.O_RDWR)",
        "os.open('/dev/kvm', os.O_RDWR)",
        "os.open('/dev/tty', os.O_RDWR)",
        "mmap.mmap(-1, 1 << 21, flags=0x40022)",
        "mmap.mmap(-1, 1 << 12, flags=0x2022)",
        "r, w = os.pipe(); fcntl.fcntl(r, 1031, 1 << 20)",
        "a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [0])",
        "os.setsid() if os.getsid(0) == os.getpid() else 0; os.chroot('.')",
        "os.posix_spawn('/usr/bin/newuidmap', ['newuidmap', str(os.getpid()), '0', '0', '1'], {}); os.setuid(0)",
    ):
        yield f"import os, subprocess, ctypes, mmap, fcntl, socket\n{attempt}\n{RIGHT}"
    for code in (
        r"b'\xb8\x14\x00\x00\x00\xcd\x80\xc3'",  # getpid by int 0x80
        r"b'\xb8\x66\x00\x00\x00\xbb\x01\x00\x00\x00\xcd\x80\xc3'",  # socketcall
        r"b'\xb8\x29\x00\x00\x40\xbf\x01\x00\x00\x00\xbe\x01\x00\x00\x00\x31\xd2\x0f\x05\xc3'",  # socket by x32
    ):
        yield f"{MACHINE_CODE}if run({code}) < 0: raise OSError('refused')\n{RIGHT}"


def staying() -> Iterator[str]:
    """Would be there when the next one is judged, or make its own end last."""
    daemon = "import os, sys, time\nif os.fork() == 0:\n    if os.fork() == 0:\n"
    yield from (
        f"{daemon}        while True: time.sleep(0.01)",
        f"{daemon}        os.execv('/bin/sh', ['sh', '-c', 'trap \"\" TERM HUP INT; while :; do :; done'])",
        f"{daemon}        while True:\n            if os.fork(): os._exit(0)",
        f"{daemon}        while True: os.write(1, b'not mine 1\\n')",
        f"{daemon}        os.dup2(1, 9); time.sleep(999)\nos._exit(0)",
        "import os\nwhile True:\n    if os.fork(): os._exit(0)",
        "import os\nfor i in range(3):\n    if os.fork() == 0:\n        while True:\n            if os.fork(): os._exit(0)",
        "import ctypes, os\nc = ctypes.CDLL(None)\nfor s in (9, 15, 19, 0):\n    if c.syscall(56, s, 0, 0, 0, 0) == 0:\n"
        "        if os.fork() == 0: os.kill(os.getpid(), 11)\n        os._exit(0)",
        "import ctypes, os\nc = ctypes.CDLL(None)\nwhile True: c.syscall(56, 0x8000 | 17, 0, 0, 0, 0)",
        "import os, signal\nos.kill(0, signal.SIGSTOP)\nos.kill(os.getpid(), signal.SIGSTOP)",
        "import os\nif os.fork() == 0:\n    while True: os.kill(os.getppid(), 18)\nwhile True: os.kill(os.getpid(), 19)",
        "import ctypes, threading, time\nthreading.Thread(target=time.sleep, args=(999,)).start()\n"
        "ctypes.CDLL(None).syscall(60, 0)",
        "import ctypes\nctypes.CDLL(None).prctl(15, b'x\\nVmRSS: 1')\nx = []\nwhile True: x.append(bytearray(10 ** 7))",
        "import signal, os\nsignal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)\nsignal.signal(14, lambda *a: None)\n"
        "while True:\n    try:\n        if os.fork() == 0: os._exit(0)\n        os.wait()\n    except OSError: pass",
        "import os\nwhile True:\n    if os.fork() == 0: os._exit(0)\n    os.wait()",
        "import threading\nwhile True:\n    t = threading.Thread(target=int); t.start(); t.join()",
        "class D:\n    def __del__(self):\n        while True: pass\nx = D()\ndef f(x): return 1",
        "import atexit, time\natexit.register(time.sleep, 999)",
        "import gc, time\ngc.callbacks.append(lambda *a: time.sleep(999))\ngc.collect()",
        "import threading\nthreading._shutdown = lambda: None\nlock = threading.Lock(); lock.acquire(); lock.acquire()",
        "import os\nfor i in range(200):\n    os.mkdir('x'); os.chdir('x')\nos.symlink('/', 'y'); os.symlink('..', 'z')",
        "import os, tempfile\nfor n in ('sitecustomize', 'usercustomize', 'math', 'json', 'solution', 'tests'):\n"
        "    for d in ('.', '..', tempfile.gettempdir(), '/tmp', '/var/tmp', '/dev/shm'):\n"
        "        try: open(f'{d}/{n}.py', 'w').write('raise SystemExit')\n        except OSError: pass",
        "import os, pickle\nclass E:\n    def __reduce__(self): return os._exit, (0,)\n"
        "for n in ('given', 'tests.pkl', 'x.npy'):\n"
        "    open(n, 'wb').write(pickle.dumps(E()))\nf = lambda x: E()",
        "import os, shutil\nfor d in ('..', '../..', '/tmp', '/var/tmp'):\n    shutil.rmtree(d, ignore_errors=True)",
        "import os\nos.mkdir('a'); os.symlink('/usr', 'b')\n"
        "while True: os.rename('a', 'c'); os.rename('b', 'a'); os.rename('a', 'b'); os.rename('c', 'a')",
        "import os, mmap\nx = []\nwhile True:\n    f = open('x', 'w+b'); os.remove('x'); f.write(b'x' * (8 << 20)); f.flush()\n"
        "    x.append(mmap.mmap(f.fileno(), 0))",
        "import os, time\nx = []\nfor i in range(20):\n"
        "    f = open('x', 'w+b'); x.append(f); os.remove('x'); f.write(b'x' * (8 << 20)); f.flush()\n"
        "time.sleep(999)",
    )


def turning() -> Iterator[str]:
    """Turns its own interpreter, which the tester speaks to, into one that says whatever there is to say."""
    yield from (
        "import sys; sys.addaudithook(lambda *a: print('right'))",
        "import sys; sys.addaudithook(lambda name, a: (_ for _ in ()).throw(SystemExit(0)))",
        "import sys; sys.setprofile(lambda frame, event, value: frame.f_locals.update(right=True))",
        "import sys, threading; threading.settrace(sys.settrace(lambda f, e, v: f.f_globals.update(assert_=1)))",
        "import sys; sys.meta_path.insert(0, type('M', (), {'find_spec': lambda *a: sys.exit(0)})())",
        "import sys; sys.path_hooks[:] = [lambda p: sys.exit(0)]; sys.path_importer_cache.clear()",
        "import builtins; builtins.__build_class__ = lambda *a: 8732",
        "import builtins; builtins.type = builtins.len = builtins.str = lambda *a: 8732",
        "import json; json.loads = lambda *a: {'value': 8732}; json.JSONEncoder.encode = lambda *a: '{\"value\": 8732.0}'",
        "import roll.graders.sandbox.object_proxy as p; p.to_json = lambda *a: True",
        "import roll.graders.sandbox.object_proxy as p; p.METHODS.clear()",
        "import roll.graders.sandbox.tester as t; t.same = lambda *a: True; t._tested = lambda *a: (9, '')",
        'import roll.graders.sandbox.tester as t, os; os.write(5, b\'{"passed": 9, "why": ""}\')',
        "import roll.graders.code_judge as j; j.same_output = lambda *a: True",
        "import ctypes, sys; ctypes.pythonapi.Py_DecRef(ctypes.py_object(8732)); f = lambda x: 8733",
        "import ctypes; ctypes.c_int.from_address(id(8733) + 24).value = 8732; f = lambda x: 8733",
        "import sys; sys.stdout.write = lambda text: None; sys.stdout = None",
        "import sys, os; os.close(0); os.close(1); os.close(2); os.close(3); os.close(4)",
        "import os\nfor d in range(64):\n    try: os.ftruncate(d, 1 << 22)\n    except OSError: pass",
        "import os, fcntl\nfor d in range(9):\n"
        "    try: fcntl.fcntl(d, fcntl.F_SETFL, os.O_NONBLOCK | os.O_DIRECT)\n    except OSError: pass",
        "import gc\nfor o in gc.get_objects():\n    if type(o) is dict and 'passed' in o: o['passed'] = 9",
        "import warnings; warnings.simplefilter('error'); assert not 1, 'right'",
    )
    for text in (
        "ｒight 8731",
        "right ８７３１",
        "right 873l",
        "right 8\u200b731",
        "rіght 8731",
        "right 8731\\x00",
        "\\ufeffright 8731",
        "right\\r8731",
        "right 8731\\x1b[2K",
    ):
        yield f"print('{text}')\nf = lambda x: '8731\\u200b'"


def speaking() -> Iterator[str]:
    """Answers the tester's questions before, after and besides what was asked."""
    for message in (
        "{'value': [[]] * 10 ** 6}",
        "{'value': {'Decimal': '1e999999999'}}",
        "{'value': {'Fraction': '1/0'}}",
        "{'value': {'int': '0x' + 'f' * 10 ** 6}}",
        "{'value': {'ndarray': ['<f8', [10 ** 12], []]}}",
        "{'value': {'ndarray': ['|O8', [1], [1]]}}",
        "{'value': {'Counter': [[[1], 2]]}}",
        "{'value': {'handle': {'mine': 10 ** 30, 'plain': {'handle': {'mine': 1, 'plain': None}}}}}",
        "{'value': {'handle': {'mine': 1, 'plain': {'handle': {'yours': 0}}}}}",
        "{'value': 8732, 'changed': {'-1': [8732]}}",
        "{'value': 8733, 'changed': {'0': 8732}}",
        "{'error': ['AssertionError'] * 10 ** 5, 'text': ''}",
        "{'error': ['ModuleNotFoundError', 'Exception'], 'text': 'numpy'}",
        "{'error': ['Unable', 'Exception'], 'text': 'numpy'}",
        "{'error': ['\\ud800', 5], 'text': {}}",
        "{'error': 5}",
        "{'ask': 'call', 'of': -1, 'arguments': [], 'named': {'self': 1}}",
        "{'ask': 'call', 'of': 0, 'arguments': [{'handle': {'yours': 0}}], 'named': {}}",
        "{'ask': 'names', 'of': 0, 'arguments': [], 'named': {}}",
    ):
        yield f"{ANSWERS}question = asked()\nwhile True: say({message})"
        yield f"{ANSWERS}def f(x):\n    say({message}); return 8733"
    names = "{'tuple': [{'dict': [%s]}, {'dict': [%s]}]}"
    for given, errors in (
        ("['check', 8732], ['test_it', 1], ['f', True]", ""),
        ("['AssertionError', None], ['__builtins__', {'dict': []}], ['f', 8732]", ""),
        ("['f', {'handle': {'yours': 0}}]", "['AssertionError', ['StopIteration']]"),
        ("['f', 1]", "['f', ['AssertionError']], ['Exception', 5]"),
    ):
        yield f"{ANSWERS}asked(); say({{'value': {names % (given, errors)}}})\nwhile True: asked(); say({{'value': True}})"
