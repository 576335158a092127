"""Separate hosts on one machine, made of Linux namespaces: a network, a name, a process table, `/tmp`, `/dev/shm`, System V
memory, an uptime and a boot id each, a home folder that outlives a boot, and a switch between them. The checkout and its
environment are seen by all, as an image is; besides, one folder is shared. The default route leads nowhere."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
NETWORK = "10.77.0."
NETWORK_6 = "fd77::"
DAY_S = 86_400
FAST = "10gbit"
_NOTHING = "tbf rate 8bit burst 1 latency 1us"
"""No packet is small enough for it."""
REAP = r"""
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", flush=True)
while True:
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        time.sleep(0.2)
"""
"""The first process of a host: what is left behind there becomes its child."""


def why_not() -> str:
    """The reason why this machine can make no hosts; none if it can."""
    try:
        tried = subprocess.run(
            [*_unshare(0), "bash", "-c", "ip link add name sw0 type bridge && ip link set lo up && mount -t tmpfs t /tmp"],
            capture_output=True,
            text=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"hosts need root, util-linux and iproute2: {error}"
    return "" if tried.returncode == 0 else f"this machine refuses namespaces: {tried.stderr.strip() or tried.returncode}"


@dataclass(frozen=True)
class Style:
    """How the hosts of a test are set up."""

    rate: str = ""
    """Of each cable, as tc writes it (`10mbit`)."""
    own_name_at_loopback: bool = False
    """Each host's own name stands at 127.0.1.1 in its /etc/hosts, as Debian and Ubuntu write it."""
    one_name: bool = False
    """All hosts have the same name, as pods on a host's network or cloned machines have."""
    second_network: bool = False
    """Each host has another interface, first by name and with the same address on all, as docker0 is."""
    ipv6: bool = False
    """The network has IPv6 addresses and no others."""


@dataclass
class Host:
    number: int
    style: Style
    folder: Path
    """Its disk."""
    shared: Path
    switch: int
    """The process that holds the switch's network open."""
    peers: int
    init: int = 0
    """Its first process, as this machine counts; 0 while the host is off."""
    _outer: subprocess.Popen[str] | None = None
    _boots: int = 0
    _moved: int = 0

    @property
    def name(self) -> str:
        return "node" if self.style.one_name else f"h{self.number}"

    @property
    def address(self) -> str:
        return f"{NETWORK_6 if self.style.ipv6 else NETWORK}{10 + self.number + self._moved}"

    @property
    def home(self) -> Path:
        """As processes outside see it."""
        return self.folder / "home"

    def boot(self) -> None:
        """Starts the host; its disk is as it was, its memory is empty."""
        self._boots += 1
        self._write_disk()
        outer = subprocess.Popen(
            [*_unshare((self.number * 4 + self._boots) * DAY_S), "bash", "-ec", self._setup()],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert outer.stdout is not None and outer.stderr is not None
        if "ready" not in outer.stdout.readline():
            raise RuntimeError(f"{self.name} does not boot: {outer.stderr.read()}")
        self._outer = outer
        self.init = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()[0])
        self._plug_in()

    def command(self, *argv: str) -> list[str]:
        """The command, to be started outside, that runs there."""
        return ["nsenter", "-t", str(self.init), "-n", "-u", "-m", "-p", "-i", "-T", *argv]

    def environment(self, given: Mapping[str, str] | None = None) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        return {**ours, "HOME": "/mnt/home", "PYTHONPYCACHEPREFIX": "", **(given or {})}

    def run(self, command: str, timeout: float = 120.0, **given: str) -> str:
        """Runs it in the host's shell; returns all that it printed. Raises `RuntimeError` if it fails."""
        done = subprocess.run(
            self.command("bash", "-c", command), capture_output=True, text=True, timeout=timeout, env=self.environment(given)
        )
        if done.returncode:
            raise RuntimeError(f"{self.name}: {command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def start(self, argv: Sequence[str], log: Path, cwd: Path, given: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Starts a program there; `nsenter` waits for it, and ends as it does. It has the terminal of nobody."""
        with log.open("ab") as sink:
            return subprocess.Popen(
                self.command(*argv),
                cwd=cwd,
                env=self.environment(given),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def cut(self) -> None:
        """Pulls the cable."""
        _run(f"{_inside(self.switch)} ip link set p{self.number} down")

    def heal(self) -> None:
        _run(f"{_inside(self.switch)} ip link set p{self.number} up")

    def pull_again_and_again(self, times: int) -> None:
        """Pulls the cable for 5 s of every 20 s."""
        for _ in range(times):
            self.cut()
            time.sleep(5)
            self.heal()
            time.sleep(15)

    def slow(self, rate: str) -> None:
        """From now on, in both directions."""
        for there, link in ((_inside(self.init), "eth0"), (_inside(self.switch), f"p{self.number}")):
            _run(f"{there} tc qdisc replace dev {link} root tbf rate {rate} burst 256k latency 200ms")

    def mute(self) -> None:
        """What it sends is lost, what others send to it arrives; until `slow`."""
        _run(f"{_inside(self.init)} tc qdisc replace dev eth0 root {_NOTHING}")

    def deafen(self) -> None:
        """What others send to it is lost; until `slow`."""
        _run(f"{_inside(self.switch)} tc qdisc replace dev p{self.number} root {_NOTHING}")

    def freeze(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def power_off(self) -> None:
        """Nothing that runs there is asked, and no connection is closed."""
        with contextlib.suppress(RuntimeError):
            self.cut()
        for pid in (self.init, self._outer.pid if self._outer is not None else 0):
            with contextlib.suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, signal.SIGKILL)
        if self._outer is not None:
            self._outer.communicate()
        subprocess.run(f"{_inside(self.switch)} ip link del p{self.number}", shell=True, capture_output=True)
        self.init, self._outer = 0, None

    def boot_elsewhere(self) -> None:
        """Loses its power, and boots with another address, as a machine of a cloud does."""
        self.power_off()
        self._moved += 100
        self.boot()

    def processes(self) -> list[int]:
        """All of the host but the first, as this machine counts them."""
        space, found = os.readlink(f"/proc/{self.init}/ns/pid"), []
        for each in Path("/proc").iterdir():
            if each.name.isdigit() and int(each.name) != self.init:
                with contextlib.suppress(OSError):
                    if os.readlink(each / "ns/pid") == space:
                        found.append(int(each.name))
        return found

    def inner_pid(self, pid: int) -> int:
        """The number that the host itself gives to a process of this machine."""
        line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("NSpid:"))
        return int(line.split()[-1])

    def _write_disk(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        rows = {f"{NETWORK_6 if self.style.ipv6 else NETWORK}{10 + each}": f"h{each}" for each in range(self.peers)}
        own = f"127.0.1.1 {self.name}\n" if self.style.own_name_at_loopback else ""
        if self.style.own_name_at_loopback:
            rows.pop(self.address, None)
        table = "127.0.0.1 localhost\n::1 localhost\n" + own + "".join(f"{at} {name}\n" for at, name in rows.items())
        if self.style.one_name:
            table += f"{self.address} {self.name}\n"
        (self.folder / "hosts").write_text(table)
        (self.folder / "hostname").write_text(f"{self.name}\n")
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")

    def _setup(self) -> str:
        disk, shared = shlex.quote(str(self.folder)), shlex.quote(str(self.shared))
        image = [shlex.quote(each) for each in sorted({str(REPO), sys.prefix, sys.base_prefix}) if each.startswith("/tmp/")]
        return "\n".join(
            [
                f"hostname {self.name}",
                "mount --make-rprivate /",
                # What lies below the host's own /tmp is taken to the side first.
                "mkdir -p /run/roll-shared && mount -t tmpfs aside /run/roll-shared && cd /run/roll-shared && mkdir disk shared",
                *(f"mkdir -p image/{number} && mount --bind {each} image/{number}" for number, each in enumerate(image)),
                f"mount --bind {disk} disk && mount --bind {shared} shared",
                "mount --bind disk/hosts /etc/hosts && mount --bind disk/hostname /etc/hostname && mount --bind disk /mnt",
                "mount -t tmpfs -o size=6g,mode=1777 tmp /tmp && mount -t tmpfs -o size=3g,mode=1777 shm /dev/shm",
                f"mkdir -p {shared} && mount --bind shared {shared}",
                *(f"mkdir -p {each} && mount --bind image/{number} {each}" for number, each in enumerate(image)),
                "cd / && mount -t proc proc /proc && mount --bind /mnt/boot_id /proc/sys/kernel/random/boot_id",
                "ip link set lo up",
                f"exec {shlex.quote(sys.executable)} -S -c {shlex.quote(REAP)}",
            ]
        )

    def _plug_in(self) -> None:
        here, switch, number = _inside(self.init), _inside(self.switch), self.number
        length = 64 if self.style.ipv6 else 24
        dad = " nodad" if self.style.ipv6 else ""
        # Made in the host, so that two suites of hosts on one machine never share a name.
        _run(f"{here} ip link add eth0 type veth peer name p{number} netns {self.switch}")
        _run(f"{switch} ip link set p{number} master sw && {switch} ip link set p{number} up")
        _run(f"{here} ip addr add {self.address}/{length} dev eth0{dad} && {here} ip link set eth0 up")
        if not self.style.ipv6:
            _run(f"{here} ip route add default via {NETWORK}1")  # nobody's address: packets end there
        if self.style.second_network:
            _run(f"{here} ip link add docker0 type bridge && {here} ip addr add 172.17.0.1/16 dev docker0")
            _run(f"{here} ip link set docker0 up")
        if self.style.rate:
            self.slow(self.style.rate)


@dataclass
class Hosts:
    """`with Hosts(...) as hosts`; a host by its number."""

    count: int
    folder: Path
    """For their disks, and for `shared`."""
    style: Style = field(default_factory=Style)

    @property
    def shared(self) -> Path:
        """The folder that all see, and processes outside, by this path."""
        return self.folder / "shared"

    def __enter__(self) -> Hosts:
        self.shared.mkdir(parents=True, exist_ok=True)
        self._switch = subprocess.Popen(
            [
                "unshare",
                "--net",
                "--fork",
                "--kill-child",
                "bash",
                "-ec",
                "ip link add sw type bridge; ip link set sw up; echo ready; exec sleep infinity",
            ],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._switch.stdout is not None
        self._switch.stdout.readline()
        inside = int(Path(f"/proc/{self._switch.pid}/task/{self._switch.pid}/children").read_text().split()[0])
        self._all = [
            Host(number, self.style, self.folder / f"disk{number}", self.shared, inside, self.count)
            for number in range(self.count)
        ]
        try:
            for host in self._all:
                host.boot()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._all:
            if host.init:
                host.power_off()
        self._switch.kill()
        self._switch.communicate()

    def __getitem__(self, number: int) -> Host:
        return self._all[number]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


def _unshare(uptime_s: int) -> list[str]:
    spaces = ("--net", "--uts", "--mount", "--ipc", "--pid", "--time", "--fork", "--kill-child")
    return ["unshare", *spaces, "--monotonic", str(uptime_s), "--boottime", str(uptime_s)]


def _inside(pid: int) -> str:
    return f"nsenter -t {pid} -n"


def _run(command: str) -> None:
    done = subprocess.run(command, shell=True, text=True, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")
