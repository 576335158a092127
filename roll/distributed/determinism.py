"""What makes matrix products repeatable, bit for bit: variables that the libraries read once, when a process first uses them.

So every process of a deterministic run gets them at its start. `warn_if_too_late` says where one did not.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
from functools import cache
from pathlib import Path

ENVIRONMENT = {
    # Without it the last bit of MKL's sums depends on where in memory a buffer happens to begin (seen on AVX-512 processors).
    "MKL_CBWR": "AUTO,STRICT",
    # Without it torch refuses matrix products on CUDA in its deterministic mode.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
_STRICT, _COMPATIBLE = 0x10000, 3
"""MKL's values: the flag of a strict branch, and the branch that is strict by itself."""

logger = logging.getLogger(__name__)


def set_environment() -> None:
    """Sets the variables for this process and its children; a variable that the user has set stays."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def mkl_is_strict() -> bool | None:
    """Whether MKL in this process repeats its results wherever its buffers lie; None where torch is built without MKL."""
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
def warn_if_too_late() -> None:
    """Logs a warning, once a process."""
    if mkl_is_strict() is False:
        logger.warning(
            "deterministic: MKL was used before MKL_CBWR was set in this process, so results may differ in the last bit; "
            "set MKL_CBWR=%s in the environment that starts it",
            ENVIRONMENT["MKL_CBWR"],
        )
