"""Activations that the backward pass computes again."""

from __future__ import annotations

from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


def recompute_activations(model: PreTrainedModel) -> None:
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for module in model.modules():
        # Checkpointing layers act in training mode only; what is inside them stays without dropout.
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True
