"""Setup of a run's process before it computes: variables that the libraries read, and that processes inherit. A variable that the
user has set stays."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import psutil

from roll.core.distributed.machine import Machine

FORWARDED = ("NCCL_", "GLOO_", "TP_", "UCX_", "TORCH_", "PYTORCH_", "VLLM_", "SGLANG_", "HF_", "TRANSFORMERS_", "CUBLAS_", "MKL_")
"""Beginnings of the names of variables by which the user tunes the libraries in the workers' processes."""
_SECRETS = ("TOKEN", "KEY", "SECRET", "PASSWORD")
DETERMINISTIC = {
    # Without it the last bit of MKL's sums depends on where in memory a buffer happens to begin (seen on AVX-512 processors).
    "MKL_CBWR": "AUTO,STRICT",
    # Without it torch refuses matrix products on CUDA in its deterministic mode.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
"""Variables that make matrix products repeatable, bit for bit. The libraries read them once, when a process first uses them, so
every process of a deterministic run starts with them; `warn_if_not_deterministic` says where one did not."""
_STRICT, _COMPATIBLE = 0x10000, 3
"""MKL's values: the flag of a strict branch, and the branch that is strict by itself."""

logger = logging.getLogger(__name__)


def set_defaults(machine: Machine) -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not machine.accelerators:
        # Where DeepSpeed is installed transformers imports it, and it would say in every process that it found no accelerator.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if not sys.stdout.isatty():
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")  # Ray colours what workers print, also in a file


def set_deterministic() -> None:
    """Sets the variables for this process and its children."""
    for name, value in DETERMINISTIC.items():
        os.environ.setdefault(name, value)


def use_network_of(address: str) -> None:
    """Has the libraries of this process meet others where those reach it, at an address of this machine. By themselves they take
    the address of the machine's own name, which may be 127.0.1.1, or the first interface, which may lead to containers."""
    at = {name for name, addresses in psutil.net_if_addrs().items() if any(each.address == address for each in addresses)}
    for interface in sorted(at)[:1]:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # without the sign: all that begin so
    for name in ("VLLM_HOST_IP", "SGLANG_HOST_IP"):
        os.environ.setdefault(name, address)


def forwarded(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the part of the driver's environment for the workers of a Ray cluster; a Ray of the run's own inherits all of it.
    No secrets: Ray shows the variables that it gets."""
    named = {name: value for name, value in environment.items() if name.startswith(FORWARDED)}
    return {name: value for name, value in named.items() if not any(word in name for word in _SECRETS)}


def mkl_is_strict() -> bool | None:
    """Returns True if MKL in this process repeats its results wherever its buffers lie; None where torch is built without MKL."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return None
    try:
        library = ctypes.CDLL(str(Path(torch.origin).parent / "lib" / "libtorch_cpu.so"))
        mode = library.mkl_serv_cbwr_get(ctypes.c_int(-1))
    except (OSError, AttributeError):
        return None
    return bool(mode & _STRICT) or mode == _COMPATIBLE


@cache
def warn_if_not_deterministic() -> None:
    """Logs a warning, once per process."""
    if mkl_is_strict() is False:
        logger.warning(
            "deterministic: MKL was used before MKL_CBWR was set in this process, so results may differ in the last bit; "
            "set MKL_CBWR=%s in the environment that starts it",
            DETERMINISTIC["MKL_CBWR"],
        )
