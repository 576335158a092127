"""Programs that are shut in, and try what they should not: they reach the gateway, and nothing else."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from roll.core.configs.program import ProgramConfig
from roll.core.errors import EpisodeFailed
from roll.platform.child import same_imports

TRIES = """
import socket
def fails(attempt, *arguments):
    try:
        attempt(*arguments)
    except OSError as error:
        return type(error).__name__
    raise AssertionError("it can")
"""


@pytest.fixture(params=[[], ["urllib.request"]], ids=["anew", "preloaded"])
def shut_in(play, request):
    """Plays an episode of a program that is shut in."""

    def played(code, **program):
        return play(TRIES + code, isolated=True, preload=request.param, **program)

    return played


@pytest.fixture
def listeners(tmp_path):
    """Of this machine, in ways that a program may try: what to connect to."""
    host = socket.gethostbyname(socket.gethostname())
    internet = [socket.create_server((each, 0)) for each in ("127.0.0.1", host)]
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", 0))
    abstract, named = (socket.socket(socket.AF_UNIX) for _ in range(2))
    abstract.bind(f"\0test {os.getpid()}")
    named.bind(str(tmp_path / "socket"))
    os.chmod(tmp_path / "socket", 0o777)
    for each in (abstract, named):
        each.listen()
    datagrams.settimeout(0.0)
    yield {"internet": [each.getsockname()[:2] for each in internet], "named": str(tmp_path / "socket"), "datagrams": datagrams}
    for each in (*internet, datagrams, abstract, named):
        each.close()


def test_it_is_answered_by_the_gateway_and_by_nothing_else(shut_in, listeners):
    code = f"""
ask("one")
for address in {listeners["internet"]}:
    assert fails(socket.create_connection, tuple(address), 5)
assert fails(socket.create_connection, ("192.0.2.1", 80), 5)
assert fails(socket.create_connection, ("::1", {listeners["internet"][0][1]}), 5)
assert fails(socket.getaddrinfo, "example.org", 80)
assert fails(socket.socket(socket.AF_UNIX).connect, "\\0test {os.getpid()}")
assert fails(socket.socket(socket.AF_UNIX).connect, {listeners["named"]!r})
for family in (socket.AF_VSOCK, socket.AF_NETLINK, socket.AF_PACKET):
    assert fails(socket.socket, family, socket.SOCK_RAW) == "PermissionError", family
datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagram.connect(("127.0.0.1", {listeners["datagrams"].getsockname()[1]}))
datagram.send(b"x")
ask("two")
"""
    one, two = shut_in(code)
    assert (one.reward, two.reward) == (7.0, 7.0)
    with pytest.raises(BlockingIOError):
        listeners["datagrams"].recv(1)


def test_it_serves_itself(shut_in):
    """As programs do that start servers of their own."""
    code = """
with socket.create_server(("127.0.0.1", 0)) as own, socket.create_connection(own.getsockname()) as there:
    here, _ = own.accept()
    here.sendall(b"hello")
    assert there.recv(5) == b"hello"
ask("one")
"""
    assert shut_in(code)[0].reward == 5.0


def test_it_sees_no_other_episode_and_no_process(shut_in, tmp_path):
    code = """
own = os.path.dirname(os.getcwd())
folder = os.path.dirname(own)
assert os.listdir(folder) == [os.path.basename(own)], "of the others"
pythons = {path.split("/")[2] for path in (*sys.path, sys.prefix, sys.executable) if path.startswith("/tmp/")}
assert os.path.dirname(folder) != "/tmp" or {*os.listdir("/tmp")} <= {os.path.basename(folder), *pythons}
assert not os.path.exists("/proc/1"), "no process"
ask("one")
"""
    assert shut_in(code)[0].reward == 5.0


def test_it_reads_no_file_of_others_and_writes_in_its_folder_alone(shut_in, tmp_path):
    (tmp_path / "secret").write_text("hidden")
    os.chmod(tmp_path / "secret", 0o777)
    code = f"""
hidden = {[str(tmp_path / "secret"), str(Path.cwd() / "pyproject.toml")]}
for path in (*hidden, "/etc/passwd", "/etc/shadow", "/proc/self/environ"):
    assert fails(open, path) == "FileNotFoundError", path
for path in (os.path.dirname(os.getcwd()), "/", "/usr", sys.prefix, "/dev", "/etc"):
    assert fails(open, path + "/made", "w"), path
for path in (os.getcwd(), os.environ["TMPDIR"], "/tmp"):
    open(path + "/made", "w").write("mine")
open("said.txt", "w").write(ask("one"))
"""
    (sample,) = shut_in(code)
    assert sample.trajectory.metrics["written"] == 1
    assert not Path("/tmp/made").exists()


def test_what_is_readable_can_be_read_and_not_written_to(shut_in, tmp_path):
    more = tmp_path / "more"
    more.mkdir()
    (more / "corpus").write_text("text")
    os.chmod(more, 0o777)
    code = f"""
assert open({str(more / "corpus")!r}).read() == "text"
assert fails(open, {str(more / "corpus")!r}, "w")
ask("one")
"""
    assert shut_in(code, readable=[str(more)])[0].reward == 5.0


def test_it_has_no_rights_and_gets_none(shut_in):
    code = """
import ctypes, subprocess
libc = ctypes.CDLL(None, use_errno=True)
def refused(name, *arguments):
    assert getattr(libc, name)(*arguments) == -1 and ctypes.get_errno() == 1, name
refused("unshare", 0x10000000)
refused("mount", b"none", b"/tmp", b"tmpfs", 0, None)
refused("ptrace", 16, 1, 0, 0)
refused("setns", 0, 0)
refused("umount2", b"/usr", 2)
for descriptor in range(3, 1024):
    assert fails(os.fstat, descriptor), descriptor
assert os.getuid() and fails(os.setuid, 0) and fails(os.chown, ".", 0, 0)
try:
    os.kill(1, 9)  # the first of its process namespace: not allowed, or not heard
except PermissionError:
    pass
words = ["bash", "-c", "echo one > a; chmod 600 a; mv a b; ls"]
done = subprocess.run(words, capture_output=True, text=True)
assert done.stdout == "agent.py\\nb\\n", done
assert fails(os.kill, -1, 9) == "ProcessLookupError", "there is nobody else"
open("said.txt", "w").write(ask("one"))
"""
    (sample,) = shut_in(code)
    assert sample.trajectory.metrics["written"] == 1


def test_what_it_has_started_ends_with_it(play, no_child_is_left):
    code = """
import time
os.fork() or (os.setsid(), os.fork() and os._exit(0), os.closerange(0, 99), time.sleep(300))
ask("one")
"""
    play(TRIES + code, isolated=True)


def test_one_that_hangs_is_ended(shut_in):
    with pytest.raises(EpisodeFailed, match="timeout"):
        shut_in("ask('one')\nimport time\ntime.sleep(60)", agent_timeout_s=1.5)


def test_set_up_and_scoring_are_shut_in_too_and_ask_nobody(play):
    tries = "import os, socket; assert os.getuid(); s = socket.socket(); assert s.connect_ex(('127.0.0.1', 80)); "
    setup = ["python", "-c", f"{tries}open('made', 'w').write('x')"]
    scoring = ["python", "-c", f"{tries}import json; json.load(open(os.environ['ROLL_TRACE'])); print(0.25)"]
    (sample,) = play(
        "assert open('made').read() == 'x'\nask('one')", isolated=True, setup=setup, reward="command", scoring=scoring
    )
    assert sample.reward == 0.25


def test_where_programs_cannot_be_shut_in_it_is_said_before_the_run():
    """Below here user namespaces are used up."""
    code = "from pathlib import Path; Path('/proc/sys/user/max_user_namespaces').write_text('0')\n"
    code += "from roll.core.configs.program import ProgramConfig; from roll.envs.program.check import installed_problems\n"
    code += "config = ProgramConfig(command=['true'], reward='posted', isolated=True)\n"
    code += "print(*(f'{each.key}: {each.message}' for each in installed_problems(config, 'program')))"
    inside = ["unshare", "--user", "--map-root-user", sys.executable, "-c", code]
    done = subprocess.run(inside, env={**os.environ, **same_imports()}, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("program.isolated: programs cannot be shut in here: "), done
    assert "unshare" in done.stdout


def test_where_they_can_nothing_is_said():
    from roll.envs.program.check import installed_problems

    config = ProgramConfig(command=["true"], reward="posted", isolated=True)
    assert not list(installed_problems(config, "program"))
