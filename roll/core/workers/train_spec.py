"""The specification of a rank of a training back end. Plain values, which can be sent to any worker.

It holds the configuration's own blocks: a new training option is a field of such a block, read by one line of a back end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch

from roll.core.configs.arguments import ModelArguments, TrainBackendConfig, TrainingArguments
from roll.core.configs.backend_arguments import DeepSpeedConfig
from roll.core.configs.sizes import TORCH_NAMES, Dtype, compute_dtype
from roll.core.workers.lr_schedule import LRSchedule, warmup_length

B = TypeVar("B", bound=TrainBackendConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimisation:
    """Optimiser, schedule and training options. Raises `ValueError` for a schedule that lacks its total."""

    arguments: TrainingArguments
    total_steps: int | None
    """Optimiser steps of the whole run."""
    max_grad_norm: float
    max_tokens_per_microbatch: int

    def __post_init__(self) -> None:
        self.schedule.at(0)

    @property
    def schedule(self) -> LRSchedule:
        training = self.arguments
        warmup = warmup_length(self.total_steps, training.warmup_steps, training.warmup_ratio)
        return LRSchedule(training.learning_rate, training.lr_scheduler_type, self.total_steps, warmup)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """Model, back end and optimisation of a rank. Raises `ValueError` for training in fp16."""

    model_path: str
    """A Hugging Face folder; `model` has the options of its use, not its path."""
    model: ModelArguments
    backend: TrainBackendConfig
    """Its class chooses the back end."""
    optimisation: Optimisation | None
    """None: a frozen model without an optimiser."""
    max_tokens_per_microbatch_infer: int
    collective_timeout_s: float
    images: str | None = None
    """The folder of the run's images, for a model that sees."""
    export_adapters: bool = False
    """Engines get the adapters alone instead of merged weights."""

    def __post_init__(self) -> None:
        if self.trained and self.dtype == "fp16":
            raise ValueError("fp16 gradients underflow; train in bf16 or fp32")

    @property
    def trained(self) -> bool:
        return self.optimisation is not None

    @property
    def dtype(self) -> Dtype:
        """The number type that layers compute in."""
        dtype = self.model.dtype
        return self.backend.computed_in(dtype) if isinstance(self.backend, DeepSpeedConfig) else dtype

    @property
    def recomputes_activations(self) -> bool:
        return self.trained and not self.model.disable_gradient_checkpointing

    def options(self, kind: type[B]) -> B:
        """Returns the back end's own options. Raises `TypeError` if they belong to another back end."""
        if not isinstance(self.backend, kind):
            raise TypeError(f"{kind.__name__} is needed, not {type(self.backend).__name__}")
        return self.backend


def resolve_dtype(name: Dtype, device: torch.device) -> torch.dtype:
    """Returns the number type that layers compute in."""
    resolved: torch.dtype = getattr(torch, TORCH_NAMES[compute_dtype(name, device.type != "cpu")])
    return resolved
