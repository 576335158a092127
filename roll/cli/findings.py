"""What `roll doctor` says about one thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    state: Literal["ok", "warn", "missing"]
    """`warn`: a run can do without it, or may meet a limit. `missing`: no run starts."""
    name: str
    text: str
    fix: str = ""
