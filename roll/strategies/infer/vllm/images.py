"""Images of requests in vLLM's types. They are what its own processor of images would hand to its engine, made by the family's
instead: an engine sees the pixels that the trainer sees, at the places where the trainer puts them, and vLLM expands nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText

from roll.core.workers.infer_interface import GenerateRequest
from roll.prompts.image_folder import ImageFolder
from roll.strategies.vision.families import family_of
from roll.strategies.vision.family import View
from roll.strategies.vision.sight import Views, showings

Prompt = Mapping[str, Any]
"""All tokens of a request so far as vLLM's engine takes them, with their images, and without a salt."""


class EngineImages:
    """Images are made ready beside the event loop."""

    def __init__(self, model: Path, images: str | None) -> None:
        """`model`: the folder of one that sees. `images`: that of the run's; None: prompts are texts. Raises `ValueError`."""
        self.shown, self._lock = images is not None, threading.Lock()
        if images is not None:
            family = family_of(model)
            if family is None:
                raise ValueError(f"the model of '{model}' reads text")
            self._mark, self._folder = family.mark, ImageFolder(Path(images))
            self._views = Views(family, self._folder)
        self.shapes = _shapes(model) if self.shown else None

    async def prompt(self, request: GenerateRequest) -> Prompt:
        """Raises `LookupError` for an image that the run has not, and `ValueError` where the engine's model shows it by another
        number of tokens."""
        ids = [*request.prompt_ids, *request.partial_ids]
        return {"prompt_token_ids": ids} if min(ids) >= 0 else await asyncio.to_thread(self._seen, ids)

    def _seen(self, ids: Sequence[int]) -> Prompt:
        from vllm.inputs.engine import mm_input
        from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange

        shown = [(number, places, self._view(number)) for number, places in showings(ids, lambda n: self._view(n).features)]
        tokens = [self._mark if token < 0 else token for token in ids]
        ranges = list[PlaceholderRange]()
        for number, places, view in shown:
            if [ids[place] for place in places] != [number] * view.features:
                message = f"image {self._folder.name_of(number)} takes {view.features} tokens in the engine's model, the prompt"
                raise ValueError(f"{message} shows it by another number: give both roles the same folder of the model")
            first, end = places[0], places[-1] + 1
            here = torch.tensor([token < 0 for token in ids[first:end]])
            ranges.append(PlaceholderRange(first, end - first, None if bool(here.all()) else here))
        items = MultiModalKwargsItems({"image": [item_of(view) for _, _, view in shown]})
        names = [Path(self._folder.name_of(number)).stem for number, _, _ in shown]
        return dict(mm_input(tokens, items, {"image": names}, {"image": ranges}))

    def _view(self, number: int) -> View:
        with self._lock:
            return self._views.of(number)


def _shapes(folder: Path) -> dict[str, list[int]]:
    """Those of the weights by transformers' names of a model that sees, which are not those of its files."""
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
    return {name: list(weight.shape) for name, weight in model.named_parameters()}


def under(prompt: Prompt, version: int) -> dict[str, Any]:
    """The input for weights of that version: what is cached of a prompt, or of an image, under others has another name."""
    salted = {**prompt, "cache_salt": str(version)}
    if "mm_hashes" in prompt:
        salted["mm_hashes"] = {kind: [f"{name}@{version}" for name in names] for kind, names in prompt["mm_hashes"].items()}
    return salted


_COUNTS = ("image_grid_thw", "num_patches")
"""Arguments of one row for each image; the others have one for each patch or tile."""


def item_of(view: View) -> Any:
    """An image's arguments of vLLM's model."""
    from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems

    inputs: dict[str, Tensor] = dict(view.inputs)
    if "image_grid_thw" not in inputs:  # tiles, which have an axis of samples before them
        inputs = {name: tensor[0] for name, tensor in inputs.items()}
        inputs["num_patches"] = torch.tensor([len(inputs["pixel_values"])])
    counts = MultiModalFieldConfig.batched("image", keep_on_cpu=True)
    fields = {
        name: counts if name in _COUNTS else MultiModalFieldConfig.flat_from_sizes("image", torch.tensor([len(tensor)]))
        for name, tensor in inputs.items()
    }
    return MultiModalKwargsItems.from_hf_inputs(inputs, fields)["image"][0]
