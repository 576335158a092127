"""Takes the place of vLLM's processors of images, in every process that imports this, for models that see here: their requests
bring images that are ready (`images`).

So vLLM needs no tokenizer and nothing of videos to start, and no setting of its own resizes an image."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image
from vllm.multimodal.processing import BaseProcessingInfo
from vllm.multimodal.processing.context import InputProcessingContext
from vllm.multimodal.registry import MultiModalRegistry

from roll.strategies.infer.vllm.images import item_of
from roll.strategies.vision.families import family_of, sees
from roll.strategies.vision.family import Family, View

_WIDEST = 7000
"""Side of a square; images of more than 50 million pixels are refused."""


class PreparedImages(BaseProcessingInfo):  # type: ignore[misc]
    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return {"image": None}

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
        """An image has to fit into a prompt: that is all that bounds it."""
        return {"image": seq_len}


class NoProcessor:
    def __init__(self, info: PreparedImages) -> None:
        self.info = info

    def get_dummy_mm_inputs(self, mm_counts: Mapping[str, int], **_: Any) -> dict[str, Any]:
        """The image with which vLLM measures the memory of the part that sees, where it does."""
        model = self.info.ctx.model_config
        family = family_of(Path(model.model))
        assert family is not None
        return {"mm_kwargs": {"image": [item_of(largest_view(family, model.max_model_len))]}}


def largest_view(family: Family, most: int) -> View:
    """A square image of nearly so many features, or of as many as the family's processor makes."""
    side, view = family.blank.width, family.view(family.blank)
    while (wider := min(int(side * math.sqrt(0.9 * most / view.features)), _WIDEST)) > side:
        seen = family.view(Image.new("RGB", (wider, wider), "white"))
        if not view.features < seen.features <= most:
            break
        side, view = wider, seen
    return view


_usual_info, _usual_processor = MultiModalRegistry._create_processing_info, MultiModalRegistry.create_processor


def _info(registry: Any, model_config: Any, tokenizer: Any = None) -> Any:
    if not sees(Path(model_config.model)):
        return _usual_info(registry, model_config, tokenizer)
    return PreparedImages(InputProcessingContext(model_config, tokenizer))


def _processor(registry: Any, model_config: Any, *, tokenizer: Any = None) -> Any:
    if not sees(Path(model_config.model)):
        return _usual_processor(registry, model_config, tokenizer=tokenizer)
    return NoProcessor(_info(registry, model_config, tokenizer))


MultiModalRegistry._create_processing_info, MultiModalRegistry.create_processor = _info, _processor
