"""Qwen2.5-VL and Qwen3-VL: one row of patches for all images, and positions with three axes (M-RoPE)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from roll.strategies.vision.family import FEATURE, Family, Focus, View


class QwenVL(Family):
    def view(self, image: Image.Image) -> View:
        made = self.processor(images=[image], return_tensors="pt")
        inputs = {name: made[name] for name in ("pixel_values", "image_grid_thw")}
        count = int(inputs["image_grid_thw"].prod()) // self.config.vision_config.spatial_merge_size**2
        return View((FEATURE,) * count, inputs)

    def joined(self, views: Sequence[View]) -> dict[str, Tensor]:
        return {name: torch.cat([view.inputs[name] for view in views]) for name in views[0].inputs}

    def positions(self, model: PreTrainedModel, tokens: Tensor, shown: Tensor, views: Sequence[View]) -> Tensor:
        grids = torch.cat([view.inputs["image_grid_thw"] for view in views]) if views else None
        trunk: Any = model.base_model
        found, _ = trunk.get_rope_index(tokens[None], mm_token_type_ids=shown[None].int(), image_grid_thw=grids)
        positions: Tensor = found[:, 0]
        return positions

    def attach(self, model: PreTrainedModel, focus: list[Focus]) -> None:
        trunk: Any = model.base_model
        computed = trunk.get_image_features

        def image_features(pixel_values: Tensor, image_grid_thw: Tensor, **_: Any) -> Any:
            seen, chosen = computed(pixel_values, image_grid_thw, return_dict=True), focus[-1].features
            seen.pooler_output = (torch.cat(seen.pooler_output).index_select(0, chosen),)
            if (deeper := getattr(seen, "deepstack_features", None)) is not None:
                seen.deepstack_features = [(torch.cat(each).index_select(0, chosen),) for each in deeper]
            return seen

        def placeholder_mask(*_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            places = focus[-1].places[:, :, None]
            return places, torch.zeros_like(places)

        trunk.get_image_features, trunk.get_placeholder_mask = image_features, placeholder_mask

    def tower(self, model: PreTrainedModel) -> list[Any]:
        trunk: Any = model.base_model
        return [trunk.visual]

    @property
    def apart(self) -> bool:
        """transformers takes two grids without a token between them for one."""
        return True
