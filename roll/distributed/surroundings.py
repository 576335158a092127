"""Variables that the libraries read and that every process of a run should find set; one that the user has set stays."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from roll.distributed.machine import Machine

FORWARDED = ("NCCL_", "GLOO_", "TP_", "UCX_", "TORCH_", "PYTORCH_", "VLLM_", "SGLANG_", "HF_", "TRANSFORMERS_", "CUBLAS_", "MKL_")
"""Beginnings of the names of variables by which the user tunes the libraries in the workers' processes."""
_SECRETS = ("TOKEN", "KEY", "SECRET", "PASSWORD")


def forwarded(environment: Mapping[str, str]) -> dict[str, str]:
    """What the workers of a Ray cluster get of the driver's environment; a Ray of the run's own inherits all of it. No secrets:
    Ray shows what it is given."""
    named = {name: value for name, value in environment.items() if name.startswith(FORWARDED)}
    return {name: value for name, value in named.items() if not any(word in name for word in _SECRETS)}


def set_defaults(machine: Machine) -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not machine.accelerators:
        # Where DeepSpeed is installed transformers imports it, and it would say in every process that it found no accelerator.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if not sys.stdout.isatty():
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")  # Ray colours what workers print, also in a file
