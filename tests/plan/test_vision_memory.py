"""Sizes and bytes that `roll check` tells of models that see, against real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_vision
import torch
from alive import Alive
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText
from vision_batches import sight_of

from roll.plan import memory
from roll.plan.model_shape import shape_of
from roll.plan.vision_shape import vision_of

FAMILIES = [*tiny_vision.MODELS]


def folder_of(family: str, tmp_path: Path) -> Path:
    return tiny_vision.save(tiny_vision.MODELS[family](), tmp_path / "model")


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def sizes(config: dict[str, Any]) -> tuple[int, int]:
    """Of the part that sees, and of the one that writes."""
    sees = vision_of(config)
    assert sees is not None
    return sees.parameters, shape_of(config).parameters


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_of_the_real_model(family: str, tmp_path: Path) -> None:
    folder = folder_of(family, tmp_path)
    model = AutoModelForImageTextToText.from_pretrained(folder)
    tower = sum(p.numel() for module in sight_of(folder, tmp_path).family.tower(model) for p in module.parameters())
    assert sizes(config_of(folder)) == (tower, sum(p.numel() for p in model.parameters()) - tower)


PUBLISHED: dict[str, dict[str, Any]] = {
    "flat": {
        "model_type": "qwen2_5_vl",
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_attention_heads": 16,
        "num_hidden_layers": 36,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "vocab_size": 151936,
        "vision_config": {"hidden_size": 1280, "out_hidden_size": 2048, "depth": 32, "intermediate_size": 3420, "num_heads": 16},
    },
    "defaults": {"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text"}, "vision_config": {}},
}
"""As folders on the hub have them: sizes of the text beside those of what sees, or next to nothing."""


def test_the_form_of_published_folders_is_read() -> None:
    given = PUBLISHED["flat"]
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(AutoConfig.for_model(**given))
    assert sum(sizes(given)) == sum(p.numel() for p in model.parameters()) == 3_754_622_976
    with torch.device("meta"):
        tower = AutoModelForImageTextToText.from_config(AutoConfig.for_model(**PUBLISHED["defaults"])).model.visual
    found = vision_of(PUBLISHED["defaults"])
    assert found is not None and found.parameters == sum(p.numel() for p in tower.parameters())


def test_what_sees_otherwise_has_no_formula() -> None:
    with pytest.raises(ValueError, match="qwen2_5_vl, qwen3_vl"):
        vision_of({"model_type": "llava", "vision_config": {}})
    with pytest.raises(ValueError, match="patch_size"):
        vision_of({"model_type": "qwen3_vl", "vision_config": {"patch_size": [16, 16]}})
    assert vision_of({"model_type": "qwen2"}) is None


WIDE: dict[str, Any] = {"hidden_size": 96, "intermediate_size": 256}


def tower_of(family: str, blocks: int, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    """A model of the family whose part that sees has so many blocks, and its configuration."""
    config = tiny_vision.MODELS[family]().config.to_dict()
    config["vision_config"] |= WIDE | {"depth" if "qwen" in family else "num_hidden_layers": blocks}
    made = AutoConfig.for_model(**config)
    return AutoModelForImageTextToText.from_config(made, attn_implementation="sdpa").eval().to(dtype), made.to_dict()


def seen(model: Any, folder: Path, images: Path) -> Tensor:
    """Features of one image of 8 x 8 places, or of the tiles of one."""
    sight = sight_of(folder, images)
    (number,) = tiny_vision.stored(images, tiny_vision.drawn("circle", (64, 64)))
    inputs = {name: value for name, value in sight._views.of(number).inputs.items() if name != "num_patches"}
    found = model.base_model.get_image_features(**inputs, return_dict=True).pooler_output
    return found if isinstance(found, Tensor) else torch.cat(list(found))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_activations_are_what_autograd_keeps(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Tolerance 3 %: small masks, places of windows, statistics of norms. Without a gradient less than one block is alive."""
    folder, images, kept = folder_of(family, tmp_path), tmp_path / "images", []
    for blocks in (2, 4):
        model, config = tower_of(family, blocks, dtype)
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        storages: dict[int, int] = {}

        def pack(tensor: Tensor, own: set[int] = own, storages: dict[int, int] = storages) -> Tensor:
            if (place := tensor.untyped_storage().data_ptr()) not in own:
                storages[place] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            features = seen(model, folder, images)
        kept.append(sum(storages.values()))
    sees = vision_of(config)
    assert sees is not None
    places = features.numel() // features.shape[-1]
    each = (kept[1] - kept[0]) / 2 / (places * sees.patches)
    outer = kept[1] / (places * sees.patches) - 4 * each
    assert each == pytest.approx(sees.block_bytes(dtype.itemsize), rel=0.03)
    assert outer == pytest.approx(sees.outer_bytes(dtype.itemsize), rel=0.03)
    with torch.no_grad(), Alive() as alive:
        seen(model, folder, images)
    most = memory.images(sees, places, dtype.itemsize, "none").bytes
    assert 0.3 * most < alive.peak <= most
