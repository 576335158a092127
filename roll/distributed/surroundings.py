"""Variables that the libraries read and that every process of a run should find set; one that the user has set stays."""

from __future__ import annotations

import os
import sys

from roll.distributed.machine import Machine


def set_defaults(machine: Machine) -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not machine.accelerators:
        # Where DeepSpeed is installed transformers imports it, and it would say in every process that it found no accelerator.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if not sys.stdout.isatty():
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")  # Ray colours what workers print, also in a file
