"""Idefics3 and SmolVLM: an image is cut into square tiles, which are named by row and column, and positions are plain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from roll.strategies.vision.family import FEATURE, Family, Focus, View

FAKE, GLOBAL = "<fake_token_around_image>", "<global-img>"


class Idefics(Family):
    def __init__(self, folder: Path, config: Any) -> None:
        super().__init__(folder, config)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        vision = config.vision_config
        self._per_tile = (vision.image_size // vision.patch_size) ** 2 // config.scale_factor**2

    def view(self, image: Image.Image) -> View:
        made = self.processor(images=[[image]], return_tensors="pt", return_row_col_info=True)
        inputs = {name: made[name] for name in ("pixel_values", "pixel_attention_mask")}
        tokens, (rows, columns) = list[int](), (made["rows"][0][0], made["cols"][0][0])
        for row in range(rows):
            for column in range(columns):
                tokens += self._tile(f"{FAKE}<row_{row + 1}_col_{column + 1}>")
            tokens += self._ids("\n" if row + 1 < rows else "\n\n")
        tokens += [*self._tile(FAKE + GLOBAL), *self._ids(FAKE)]
        if tokens.count(FEATURE) != inputs["pixel_values"].shape[1] * self._per_tile:
            raise ValueError("its tiles are not those that the model's tokens name")
        return View(tuple(tokens), inputs)

    def _tile(self, named: str) -> list[int]:
        return [*self._ids(named), *[FEATURE] * self._per_tile]

    def _ids(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    def joined(self, views: Sequence[View]) -> dict[str, Tensor]:
        return {name: torch.cat([view.inputs[name] for view in views], 1) for name in views[0].inputs}

    def positions(self, model: PreTrainedModel, tokens: Tensor, shown: Tensor, views: Sequence[View]) -> Tensor:
        return torch.arange(len(tokens))[None]

    def attach(self, model: PreTrainedModel, focus: list[Focus]) -> None:
        def merged(input_ids: Tensor, inputs_embeds: Tensor, image_hidden_states: Tensor) -> Tensor:
            now = focus[-1]
            features = image_hidden_states.flatten(0, 1).index_select(0, now.features)
            return inputs_embeds.masked_scatter(now.places[:, :, None], features.to(inputs_embeds.dtype))

        model.base_model.inputs_merger = merged

    def tower(self, model: PreTrainedModel) -> list[Any]:
        trunk: Any = model.base_model
        return [trunk.vision_model, trunk.connector]

    @property
    def apart(self) -> bool:
        return False
