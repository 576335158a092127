"""The interface of a family of models that see: how an image becomes pixels, tokens and positions, and where its features go.

What a family does differently stands in its own module; all that is the same for every family is in `sight`.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor
from transformers import AutoImageProcessor, PreTrainedModel

from roll.core.errors import boundary

PROCESSOR = "preprocessor_config.json"
SIZES = ("do_resize", "size", "patch_size", "merge_size", "do_image_splitting", "max_image_size")
"""Options of a processor by which an image becomes so many features."""
FEATURE = -1
"""Place, among the tokens of a view, that one feature of the image takes."""


def copy_processor(source: Path, target: Path) -> None:
    """A folder that is written of a model that sees can be read like the one that it was read from."""
    if (source / PROCESSOR).is_file() and not (target / PROCESSOR).exists():
        shutil.copyfile(source / PROCESSOR, target / PROCESSOR)


@dataclass(frozen=True, slots=True)
class View:
    """An image as a model of the family sees it."""

    tokens: tuple[int, ...]
    """The token ids that stand in the place of the image's mark, with `FEATURE` for each of its features."""
    inputs: dict[str, Tensor]
    """Arguments of the model for this image alone."""

    @property
    def features(self) -> int:
        return self.tokens.count(FEATURE)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.inputs.values())


@dataclass(slots=True)
class Focus:
    """Places that features take in the forward under way, in the order of the tokens, and the feature of each."""

    places: Tensor
    """[R, W] bool."""
    features: Tensor
    """[K] index among the features of all distinct images."""


class Family(ABC):
    """Made of a model's folder. Raises `ValueError` where its processor of images cannot be used."""

    def __init__(self, folder: Path, config: Any) -> None:
        if not (folder / PROCESSOR).is_file():
            raise ValueError(f"'{folder}' has no {PROCESSOR}: it does not say how images are shown to the model")
        with boundary(ValueError, f"{folder / PROCESSOR} cannot be used"):
            self.processor: Any = AutoImageProcessor.from_pretrained(
                folder, backend="pil", local_files_only=True, trust_remote_code=False
            )
        self.config = config
        self.mark: int = config.image_token_id
        """The token that a chat template writes for an image."""

    @abstractmethod
    def view(self, image: Image.Image) -> View:
        """Raises `ValueError` for an image that the model cannot be shown."""

    @abstractmethod
    def joined(self, views: Sequence[View]) -> dict[str, Tensor]:
        """Arguments of the model for several images."""

    @abstractmethod
    def positions(self, model: PreTrainedModel, tokens: Tensor, shown: Tensor, views: Sequence[View]) -> Tensor:
        """[axes, T] of one sequence. `tokens`: [T] int64. `shown`: [T] bool, the places of features. `views`: its images, one
        for each time that one stands there."""

    @abstractmethod
    def attach(self, model: PreTrainedModel, focus: list[Focus]) -> None:
        """Makes the model put features where the last entry of `focus` says, each as often as it is asked for."""

    @abstractmethod
    def tower(self, model: PreTrainedModel) -> list[Any]:
        """The modules that see, of which a text needs none."""

    @property
    def places(self) -> str:
        """Says which places an image takes among tokens, whatever its size. Those who are given the same ids have the same."""
        sizes = {name: str(getattr(self.processor, name, None)) for name in SIZES}
        return f"token {self.mark}, {sizes}, {self.view(self.blank).tokens}"

    @property
    @abstractmethod
    def apart(self) -> bool:
        """True if two images need a token between them."""

    @property
    def blank(self) -> Image.Image:
        """A small image, for a forward without any."""
        return Image.new("RGB", (32, 32), "white")
