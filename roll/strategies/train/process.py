"""What a training process sets once, before its model is built: device, threads, seeds, determinism, number type."""

from __future__ import annotations

from typing import Literal

import torch

from roll.distributed.determinism import warn_if_too_late
from roll.strategies.train.interface import RankContext

DTypeName = Literal["auto", "fp32", "bf16", "fp16"]


def prepare_process(context: RankContext, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(context.threads)
    torch.manual_seed(context.seed + context.rank)
    if context.deterministic:
        warn_if_too_late()
        torch.use_deterministic_algorithms(True)


def resolve_dtype(name: DTypeName, device: torch.device) -> torch.dtype:
    """The type to compute in; auto: float32 on a CPU, bfloat16 elsewhere."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]
