"""Rows of a trainer's micro-batch that show images."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from roll.core.data.token_batch import Padded
from roll.core.workers.train_spec import TrainSpec
from roll.strategies.train.layout import Layout, own_tokens
from roll.strategies.vision.sight import Images, Sight

IMAGES = "images"
"""The `Images` of a layout, among its arguments."""


def opened(model: PreTrainedModel, spec: TrainSpec, masters: bool) -> Sight | None:
    """None for a model that reads text. `masters`: all weights are trained, but for what is frozen here."""
    sight = Sight.of(model, Path(spec.model_path), spec.images)
    if sight is not None and masters and spec.model.freeze_vision:
        for module in sight.family.tower(model):
            module.requires_grad_(False)
    return sight


def with_images(layout: Layout, micro: Padded, sight: Sight) -> Layout:
    """The same rows with the model's tokens, their positions, and their images, each distinct one once. A forward without any
    has a blank one: ranks that divide what sees compute it together."""
    shown, own = sight.shown(micro.tokens, micro.lengths.tolist()), own_tokens(micro)
    forest = "forest" in layout.arguments

    def chosen(values: Tensor) -> Tensor:
        return values[own][None] if forest else values

    positions = shown.positions[:, own][:, None] if forest else shown.positions
    arguments = {
        **layout.arguments,
        "position_ids": positions if len(positions) > 1 else positions[0],
        IMAGES: sight.images(shown, chosen) or sight.blank(layout.tokens),
    }
    return replace(layout, tokens=chosen(shown.tokens), arguments=arguments)


def looking(sight: Sight | None, images: Images | None) -> AbstractContextManager[dict[str, Any]]:
    return nullcontext({}) if sight is None else sight.looking(images)
