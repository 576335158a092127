"""The environment of the programs that tests start as processes: this checkout and the tests' support can be imported."""

from __future__ import annotations

import os
from pathlib import Path

_SUPPORT = Path(__file__).parent


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(_SUPPORT.parents[1]), str(_SUPPORT)])}
