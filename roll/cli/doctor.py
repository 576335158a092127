"""`roll doctor`: packages of this machine, and programs that start on it. One line per finding, with the fix.

Packages are looked up in their metadata, not imported. Each started program runs in a process of its own with a time limit."""

from __future__ import annotations

import math
import os
import platform
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from roll.cli.findings import Finding, answer
from roll.cli.options import Parser, answering
from roll.core.configs.engines import ENGINES
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import ConfigError, Problem
from roll.core.configs.sizes import GIB
from roll.core.distributed.machine import Machine, this_machine
from roll.core.errors import SandboxFailed
from roll.graders.code_judge import state_here
from roll.graders.sandbox.sandbox import BUILT_IN, checked
from roll.strategies.infer.installed_engine import EnginePackage, engine_package

_WORKER = "CodeSandboxRewardWorker"
_FIX = "allow user namespaces (in a container: its seccomp profile; Ubuntu: kernel.apparmor_restrict_unprivileged_userns=0), or "
_FIX += "install bubblewrap and set rewards.<domain>.reward_args.isolation: bubblewrap"


def sandbox_here(config: PPOConfig) -> Iterator[str]:
    """Yields one line per domain whose programs this machine would judge."""
    for domain, reward in config.reward_configs.items():
        arguments = reward.reward_args
        if not str(reward.worker_cls).endswith(_WORKER) or not arguments.get("use_local", not arguments.get("code_url")):
            continue
        key = f"rewards.{domain}"
        try:
            isolation = checked(arguments.get("isolation", BUILT_IN))
            yield f"{key}: programs are shut in by {_told(state_here(isolation))}"
        except (SandboxFailed, OSError, ValueError) as error:
            yield f"a run on this machine would be refused: {key}: {error}"


def _told(state: dict[str, list[str]]) -> str:
    names = ", ".join(layer.partition(":")[0] for layer in state["in_force"])
    return names + "".join(f"; not by {layer}" for layer in state["missing"])


EXTRAS = {
    "deepspeed": "strategy_name deepspeed_train",
    "megatron": "strategy_name megatron_train",
    "lora": "model_args.lora_target",
}
"""Extras that one environment can hold together, and the purpose of each; engines are checked separately."""
LEAST_MEMORY = 4 * GIB
"""The demo's processes have 1.7 GiB together; torch and the file cache want the rest."""
LEAST_SHARED = 1 * GIB
"""Ray keeps what its processes hand to each other in /dev/shm; below it, Ray writes to the disk."""
LEAST_DISK = 5 * GIB
LEAST_FILES = 4096
"""Ray asks for as many: every worker has sockets to all others."""
_TORCH = "import torch; print(torch.__version__, int(torch.cuda.is_available()) and torch.cuda.device_count())"
_COMPILATION = """\
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
given = torch.linspace(0, 1, 64, device=device)
try:
    assert torch.allclose(torch.compile(lambda x: (x.sin() * 2).exp())(given), (given.sin() * 2).exp()), "wrong results"
except Exception as error:
    raise SystemExit(" ".join(str(error).split("\\n\\n")[0].split())[:300])
"""
_RAY = """\
import ray
ray.init(address="local", include_dashboard=False, configure_logging=False, num_cpus=1)
print(ray.get(ray.remote(lambda: ray.__version__).remote()))
ray.shutdown()
"""


def enough(name: str, is_enough: bool, text: str, lack: str, fix: str) -> Finding:
    """Returns a finding on a limit of the machine, and on the effect if it is too low."""
    return Finding("ok", name, text) if is_enough else Finding("warn", name, f"{text} {lack}", fix)


@answering
def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 1 if something is missing that every run needs, 2 for bad input, else 0."""
    parser = Parser(prog="roll doctor", description="What is installed here, and what can start.")
    parser.add_argument("--vllm_python", metavar="PATH", help="interpreter that has vLLM (default: this one)")
    parser.add_argument("--sglang_python", metavar="PATH", help="interpreter that has SGLang")
    parser.add_argument("--output_dir", default=".", help="where runs are to be written (default: .)")
    parser.add_argument("--time_limit", type=float, default=60.0, help="seconds that torch and Ray each may take to start (60)")
    parser.add_argument("--json", action="store_true", help="the same as data")
    parser.add_argument(
        "--cluster", action="store_true", help="asks every node of the Ray cluster that RAY_ADDRESS names, instead"
    )
    parser.add_argument("--model", default="", metavar="FOLDER", help="with --cluster: a model that all nodes are to have")
    options = parser.parse_args(arguments)
    if not (math.isfinite(options.time_limit) and options.time_limit > 0):
        raise ConfigError([Problem("--time_limit", options.time_limit, "must be a number > 0", "e.g. 60")])
    if options.cluster:
        from roll.cli.doctor_cluster import cluster_findings

        return answer([*cluster_findings(Path(options.output_dir), options.model)], options.json)
    machine = this_machine()
    found = [
        *packages(),
        *engines(options.vllm_python, options.sglang_python),
        *machine_findings(machine, Path(options.output_dir)),
        sandbox(),
        torch_starts(machine, options.time_limit),
        compilation(machine, options.time_limit),
        ray_starts(options.time_limit),
    ]
    return answer(found, options.json)


def packages() -> Iterator[Finding]:
    yield Finding("ok", "python", f"{platform.python_version()}")
    try:
        wanted = [Requirement(line) for line in requires("roll") or []]
    except PackageNotFoundError:
        yield Finding("warn", "roll", "is not installed: versions cannot be compared", "pip install . in the checkout")
        return
    yield Finding("ok", "roll", version("roll"))
    base = [each for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    here, lacking = _compared(base)
    if lacking:
        yield Finding("missing", "packages", ", ".join(lacking), f"pip install {_quoted(base, lacking)}")
    else:
        yield Finding("ok", "packages", ", ".join(here))
    for extra, serves in EXTRAS.items():
        # An older installation may not know the extra.
        named = [each for each in wanted if each not in base and each.marker and each.marker.evaluate({"extra": extra})]
        here, lacking = _compared(named)
        if lacking:
            yield Finding("warn", extra, f"{', '.join(lacking)}: no {serves}", f"pip install {_quoted(named, lacking)}")
        elif named:
            yield Finding("ok", extra, f"{', '.join(here)}: {serves}")


def _compared(wanted: list[Requirement]) -> tuple[list[str], list[str]]:
    """Returns the packages that are there, and those that are missing or have another version."""
    here, lacking = [], []
    for each in wanted:
        try:
            found = version(each.name)
        except PackageNotFoundError:
            lacking.append(f"{each.name} is not installed")
            continue
        if each.specifier.contains(found, prereleases=True):
            here.append(f"{each.name} {found}")
        else:
            lacking.append(f"{each.name} {found} is not {each.specifier}")
    return here, lacking


def _quoted(wanted: list[Requirement], lacking: list[str]) -> str:
    names = {line.split()[0] for line in lacking}
    return " ".join(f"'{each.name}{each.specifier}'" for each in wanted if each.name in names)


def machine_findings(machine: Machine, output_dir: Path) -> Iterator[Finding]:
    units = {None: "", "": ", without instructions for bfloat16"}.get(
        machine.bf16, f", bfloat16 by {machine.bf16}: dtype: bf16 pays"
    )
    yield Finding("ok", "processors", f"{machine.cpus} cores{units}")
    memory = f"{machine.memory / GIB:.1f} GiB"
    fix = f"at least {LEAST_MEMORY / GIB:.0f} GiB, or run with --local"
    yield enough("memory", machine.memory >= LEAST_MEMORY, memory, "is little", fix)
    shown = ", ".join(f"{size / GIB:.0f} GiB" for size in machine.accelerators)
    yield Finding("ok", "accelerators", shown or "none: devices are shares of the processors")
    yield shared_memory(Path("/dev/shm"))
    yield disk(output_dir)
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield ports()


def shared_memory(folder: Path) -> Finding:
    if not folder.is_dir():
        return Finding("warn", "shared memory", f"{folder} is not there: Ray writes to the disk instead", "run with --local")
    size = shutil.disk_usage(folder).total
    fix = "start the container with --shm-size=2g, or run with --local"
    text, lack = f"{folder}: {size / GIB:.2f} GiB", "is little for Ray and data loaders"
    return enough("shared memory", size >= LEAST_SHARED, text, lack, fix)


def disk(folder: Path) -> Finding:
    place = next(each for each in (folder.resolve(), *folder.resolve().parents) if each.exists())
    free = shutil.disk_usage(place).free
    text, fix = f"{free / GIB:.1f} GiB free in {place}", "free some, or set output_dir to another disk"
    return enough("disk", free >= LEAST_DISK, text, "may be too little for checkpoints", fix)


def open_files(limit: int) -> Finding:
    if limit == resource.RLIM_INFINITY:
        return Finding("ok", "open files", "no limit")
    return enough(
        "open files", limit >= LEAST_FILES, f"at most {limit:,} per process", "is little for Ray", f"ulimit -n {LEAST_FILES}"
    )


def ports() -> Finding:
    """Workers meet on loopback; a cluster's nodes by the address of the host's name."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), timeout=5):
            pass
    except OSError as error:
        return Finding(
            "missing", "ports", f"no port of 127.0.0.1 can be opened and reached: {error}", "allow loopback connections"
        )
    return Finding("ok", "ports", "processes can meet on 127.0.0.1")


def engines(vllm_python: str | None, sglang_python: str | None) -> Iterator[Finding]:
    named = {"vllm": vllm_python, "sglang": sglang_python}
    for name in ENGINES:
        package = engine_package(name)
        yield Finding("ok", name, "built in") if package is None else _engine(name, package, named.get(name))


def _engine(name: str, package: EnginePackage, named: str | None) -> Finding:
    python = package.interpreter(named)
    if python is None and package.VARIABLE:
        text = "runs from an interpreter of its own, which was not named"
        return Finding("warn", name, text, f"roll doctor --{name}_python PATH, or {package.VARIABLE}")
    try:
        return Finding("ok", name, f"{package.SERIES} in {package.check_installed(python)}")
    except ValueError as error:
        return Finding("warn", name, str(error), package.INSTALL)


def torch_starts(machine: Machine, limit_s: float) -> Finding:
    done = run_limited(_TORCH, limit_s)
    if done.problem:
        return Finding("missing", "torch", f"cannot be imported: {done.problem}", "pip install torch, as the package asks for it")
    version, count = done.output.split()
    if machine.accelerators and count == "0":
        text = f"{version} can use none of the {len(machine.accelerators)} accelerators: a run is refused"
        return Finding("missing", "torch", text, "install a torch for this driver, or set CUDA_VISIBLE_DEVICES= to run on CPUs")
    return Finding("ok", "torch", f"{version} starts, {count} accelerators")


def compilation(machine: Machine, limit_s: float) -> Finding:
    """Tells which way the layers of a training role take on this machine."""
    done, auto = run_limited(_COMPILATION, limit_s), bool(machine.accelerators)
    if done.problem:
        text = f"torch.compile does not work, so layers and heads are trained eagerly: {done.problem}"
        return Finding("warn" if auto else "ok", "compilation", text, "install a C++ compiler" if auto else "")
    if auto:
        return Finding("ok", "compilation", "layers and heads are compiled (strategy_config.compile: auto)")
    return Finding("ok", "compilation", "works, and is asked for by strategy_config.compile: true (auto: on accelerators only)")


def ray_starts(limit_s: float) -> Finding:
    if find_spec("ray") is None:
        return Finding("warn", "ray starts", "ray is not installed", "run with --local")
    done = run_limited(_RAY, limit_s)
    if done.problem:
        return Finding("warn", "ray starts", f"no: {done.problem}", "run with --local; /tmp/ray/session_latest/logs says more")
    return Finding("ok", "ray starts", f"ray {done.output} ran a task")


class ProgramResult:
    """A program that ran to its end, or why it did not."""

    def __init__(self, output: str, problem: str) -> None:
        self.output, self.problem = output.strip(), problem


def run_limited(program: str, limit_s: float) -> ProgramResult:
    """Runs a Python program; it and everything that it started are killed at the time limit."""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
    )
    try:
        output, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return ProgramResult("", f"it took more than {limit_s:g} s")
    if process.returncode:
        last = errors.strip().splitlines()
        return ProgramResult("", last[-1] if last else f"exit code {process.returncode}")
    return ProgramResult(output, "")


def sandbox() -> Finding:
    """Checks the sandbox of code rewards: a program that does nothing is judged."""
    try:
        state = state_here()
    except (SandboxFailed, OSError) as error:
        return Finding("warn", "code sandbox", f"none here: {error}", "or give reward_args.code_url, a service")
    return Finding("warn" if state["missing"] else "ok", "code sandbox", _told(state), _FIX if state["missing"] else "")
