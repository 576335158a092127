"""The process group of a rank that is alone."""

from __future__ import annotations

import subprocess
import sys

ALONE = """
import atexit
import torch, torch.distributed as dist
from roll.strategies.train.process import ensure_group_of_one
atexit.register(lambda: print("in a group" if dist.is_initialized() else "has left"))  # called last
ensure_group_of_one(torch.device("cpu"))
print("in a group" if dist.is_initialized() else "never was")
"""


def test_a_rank_that_is_alone_leaves_its_group_when_its_process_ends() -> None:
    """NCCL warns of one that does not."""
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["in a group", "has left"]
