"""Sizes in bytes, of number types by their names in configurations and of memory; and human-readable numbers."""

from __future__ import annotations

from typing import Literal, NamedTuple

ComputeDtype = Literal["fp32", "bf16", "fp16"]
Dtype = Literal["auto", ComputeDtype]

TORCH_NAMES: dict[ComputeDtype, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
BYTES: dict[ComputeDtype, int] = {"fp32": 4, "bf16": 2, "fp16": 2}


class Lengths(NamedTuple):
    """Lengths in tokens."""

    prompt: int
    response: int
    sequence: int


def compute_dtype(name: Dtype, accelerator: bool) -> ComputeDtype:
    """Resolves `auto`: bf16 on an accelerator and fp32 on a CPU."""
    if name == "auto":
        return "bf16" if accelerator else "fp32"
    return name


KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

WINDOW = 2
"""Weight buckets in flight to one receiver. It loads them one by one, and meanwhile the second is fetched, read and hashed; a
third would only wait, and take the memory of a bucket."""


def compact(value: float, sign: str = "") -> str:
    """Formats with three decimals; from a million on, with three significant digits. `sign`: + for an explicit plus sign."""
    return format(value, f"{sign}.3f" if abs(value) < 1e6 else f"{sign}.3g")


def counted(count: int, noun: str) -> str:
    """`1 step`, `2,000 steps`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def duration(seconds: float) -> str:
    """`7.2 s`, `3 min 05 s`, `2 h 04 min`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
