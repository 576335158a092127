"""Findings of `roll doctor`, on the screen or as data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    state: Literal["ok", "warn", "missing"]
    """`warn`: a run can do without it, or may meet a limit. `missing`: no run starts."""
    name: str
    text: str
    fix: str = ""


def answer(found: Sequence[Finding], as_json: bool) -> int:
    """Prints them; returns the exit code: 1 if something is missing that every run needs."""
    fit = all(finding.state != "missing" for finding in found)
    print(json.dumps({"ok": fit, "findings": [asdict(each) for each in found]}, indent=2) if as_json else as_text(found))
    return 0 if fit else 1


def as_text(found: Sequence[Finding]) -> str:
    width = max(len(finding.name) for finding in found)
    lines = [f"{each.state:<7}  {each.name:<{width}}  {each.text}" + (f"; fix: {each.fix}" if each.fix else "") for each in found]
    return "\n".join(lines)
