"""Token ids of prompts with images: each mark becomes what the family shows in its place, with the image's number for each of its
features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from roll.core.errors import PromptFileError, boundary
from roll.prompts.image_folder import ImageFolder
from roll.prompts.image_reader import StoredImage
from roll.strategies.vision.families import family_of
from roll.strategies.vision.family import FEATURE

KEPT = 4096
"""Images whose tokens are kept."""


class Expander:
    def __init__(self, model: Path, images: Path) -> None:
        """`model`: the folder of one that sees. `images`: that of the run's. Raises `ValueError`."""
        family = family_of(model)
        if family is None:
            raise ValueError(f"the model of '{model}' reads text")
        self.mark = family.mark
        self._family, self._folder = family, ImageFolder(images)
        self._tokens: dict[int, tuple[int, ...]] = {}

    def __call__(self, ids: Sequence[int], images: Sequence[StoredImage], where: str) -> list[int]:
        """Raises `PromptFileError` where marks and images are not equally many, and for an image that the model cannot be
        shown."""
        marks = sum(token == self._family.mark for token in ids)
        if marks != len(images):
            message = f"{where}: the prompt has {len(images)} images, and its text {marks} marks of this model for them"
            raise PromptFileError(message, "a chat template that shows images, and no mark in the row's own text")
        remaining, expanded = iter(images), list[int]()
        for token in ids:
            if token != self._family.mark:
                expanded.append(token)
                continue
            if self._family.apart and expanded and expanded[-1] < 0:
                raise PromptFileError(
                    f"{where}: two images with nothing between them are one to this model", "a text between them"
                )
            image = next(remaining)
            expanded += (image.number if each == FEATURE else each for each in self._shown(image, where))
        return expanded

    def _shown(self, image: StoredImage, where: str) -> tuple[int, ...]:
        """An image's tokens are looked at once, however many rows have it; of many images the newest are kept."""
        if image.number not in self._tokens:
            with boundary(lambda text: PromptFileError(f"{where}: the {image.width} x {image.height} image: {text}")):
                self._tokens[image.number] = self._family.view(self._folder.open(image.number)).tokens
            if len(self._tokens) > KEPT:
                self._tokens.pop(next(iter(self._tokens)), None)
        return self._tokens[image.number]
