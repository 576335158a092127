"""The families of models that see here, by the `model_type` of a model's config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig

from roll.core.configs.dotted_path import named_object
from roll.core.weights.folder_files import CONFIG, read_json
from roll.strategies.vision.family import Family

FAMILIES = {
    "qwen2_5_vl": "roll.strategies.vision.qwen_vl.QwenVL",
    "qwen3_vl": "roll.strategies.vision.qwen_vl.QwenVL",
    "idefics3": "roll.strategies.vision.idefics.Idefics",
    "smolvlm": "roll.strategies.vision.idefics.Idefics",
}


def sees(folder: Path) -> bool:
    """True if the folder's model is of a family."""
    return read_json(folder / CONFIG).get("model_type") in FAMILIES


def check_sight(folder: Path, images: bool) -> None:
    """Raises `ValueError` for a model that is shown images and reads text, or the other way round, and for a processor that
    cannot be used."""
    if images == sees(folder):
        family_of(folder)
    elif images:
        kind = read_json(folder / CONFIG).get("model_type")
        raise ValueError(
            f"'{folder}' (model_type {kind!r}) is shown images by data_args.images; what sees: {', '.join(FAMILIES)}"
        )
    else:
        raise ValueError(f"'{folder}' is a model that sees, and is shown nothing: data_args.images: {{}}, or a model that reads")


def family_of(folder: Path) -> Family | None:
    """Returns None for a model that reads text. Raises `ValueError`."""
    if not sees(folder):
        return None
    config: Any = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    family: Family = named_object(FAMILIES[config.model_type])(folder, config)
    return family
