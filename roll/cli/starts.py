"""Whether torch, the engines and Ray start here. What is started runs in a process of its own with a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from roll.cli.findings import Finding
from roll.distributed.machine import Machine
from roll.strategies.infer.sglang import arguments as sglang_arguments
from roll.strategies.infer.vllm import arguments as vllm_arguments

_TORCH = "import torch; print(torch.__version__, int(torch.cuda.is_available()) and torch.cuda.device_count())"
_RAY = """\
import ray
ray.init(address="local", include_dashboard=False, configure_logging=False, num_cpus=1)
print(ray.get(ray.remote(lambda: ray.__version__).remote()))
ray.shutdown()
"""


def engines(vllm_python: str | None, sglang_python: str | None) -> Iterator[Finding]:
    yield Finding("ok", "hf_infer", "built in")
    check = partial(vllm_arguments.check_installed, vllm_python)
    yield _engine("vllm", vllm_arguments.SERIES, check, vllm_arguments.INSTALL)
    sglang_python = sglang_arguments.interpreter(sglang_python)
    if sglang_python is None:
        text = "runs from an interpreter of its own, which was not named"
        yield Finding("warn", "sglang", text, f"roll doctor --sglang_python PATH, or {sglang_arguments.VARIABLE}")
    else:
        check = partial(sglang_arguments.check_interpreter, sglang_python)
        yield _engine("sglang", sglang_arguments.SERIES, check, sglang_arguments.INSTALL)


def _engine(name: str, series: str, check: Callable[[], Path], fix: str) -> Finding:
    try:
        return Finding("ok", name, f"{series} in {check()}")
    except ValueError as error:
        return Finding("warn", name, str(error), fix)


def torch_starts(machine: Machine, limit_s: float) -> Finding:
    done = run_limited(_TORCH, limit_s)
    if done.problem:
        return Finding("missing", "torch", f"cannot be imported: {done.problem}", "pip install torch, as the package asks for it")
    version, count = done.output.split()
    if machine.accelerators and count == "0":
        text = f"{version} can use none of the {len(machine.accelerators)} accelerators: a run is refused"
        return Finding("missing", "torch", text, "install a torch for this driver, or set CUDA_VISIBLE_DEVICES= to run on CPUs")
    return Finding("ok", "torch", f"{version} starts, {count} accelerators")


def ray_starts(limit_s: float) -> Finding:
    if find_spec("ray") is None:
        return Finding("warn", "ray starts", "ray is not installed", "run with --local")
    done = run_limited(_RAY, limit_s)
    if done.problem:
        return Finding("warn", "ray starts", f"no: {done.problem}", "run with --local; /tmp/ray/session_latest/logs says more")
    return Finding("ok", "ray starts", f"ray {done.output} ran a task")


class Ended:
    """A program that ran to its end, or why it did not."""

    def __init__(self, output: str, problem: str) -> None:
        self.output, self.problem = output.strip(), problem


def run_limited(program: str, limit_s: float) -> Ended:
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
        return Ended("", f"it took more than {limit_s:g} s")
    if process.returncode:
        last = errors.strip().splitlines()
        return Ended("", last[-1] if last else f"exit code {process.returncode}")
    return Ended(output, "")
