"""Where the time of a call on an accelerator goes: busy share, kernels by kind and by name, launches, waits."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

KINDS = (
    ("attention", r"flash|fmha|attention|sdpa|softmax_warp"),
    ("products", r"gemm|cutlass|nvjet|sm\d+_xmma|cublas|matmul|::mm\b|addmm|bmm"),
    ("optimiser", r"adam|FusedOptimizer"),
    ("copies", r"memcpy|memset|copy|cat|gather|index|scatter|embedding"),
)
"""Kind -> what its kernels' names have; the first that fits. Else element by element."""
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "aten::_local_scalar_dense", "aten::nonzero")


def kind_of(kernel: str) -> str:
    return next((kind for kind, words in KINDS if re.search(words, kernel, re.IGNORECASE)), "element by element")


def profiled(call: Callable[[], Any], seconds: float) -> dict[str, Any]:
    """`seconds`: what the call takes without the profiler. On a machine without an accelerator, torch's operations instead of
    kernels."""
    accelerator = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if accelerator else [])]) as seen:
        call()
        if accelerator:
            torch.cuda.synchronize()
    time: dict[str, float] = defaultdict(float)
    number: Counter[str] = Counter()
    for name, spent in _ran(seen, accelerator):
        time[name] += spent
        number[name] += 1
    busy, kinds = sum(time.values()), defaultdict[str, float](float)
    for name, spent in time.items():
        kinds[kind_of(name)] += spent
    names = Counter(event.name for event in seen.events())
    return {
        "launched": sum(number.values()),
        "busy": busy / 1e6 / seconds,
        "kinds": {kind: spent / busy for kind, spent in _largest(kinds)},
        "kernels": [[name, spent / busy, number[name]] for name, spent in _largest(time)[:12]],
        "waits": {name: names[name] for name in WAITS if names[name]},
    }


def _largest(times: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(times.items(), key=lambda item: -item[1])


def _ran(seen: Any, accelerator: bool) -> Iterator[tuple[str, float]]:
    """Name and microseconds of each kernel. Regions that torch marks on the device's time (an optimiser's step, what is compiled)
    are made of these."""
    for event in seen.events():
        if accelerator and event.device_type == DeviceType.CUDA and not event.is_user_annotation:
            yield event.name, event.time_range.elapsed_us()
        elif not accelerator and event.name.startswith("aten::"):
            yield event.name, event.self_cpu_time_total


def told(found: dict[str, Any]) -> Iterator[str]:
    yield f"  {found['launched']:,} launched, busy {found['busy']:.0%} of the time; waits: {found['waits'] or 'none'}"
    yield "  " + ", ".join(f"{kind} {share:.0%}" for kind, share in found["kinds"].items())
    for name, share, number in found["kernels"]:
        yield f"  {share:6.1%} x{number:<6} {name[:100]}"
