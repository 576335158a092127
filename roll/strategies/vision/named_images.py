"""Images of conversations, by the names of their files, as the chat template and the tokens of a model that sees show them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roll.core.errors import PromptFileError, TemplateRefusal
from roll.prompts.image_folder import ImageFolder
from roll.prompts.image_reader import StoredImage
from roll.strategies.vision.expander import KEPT, Expander


class NamedImages:
    def __init__(self, model: Path, images: Path, tokenizer: Any) -> None:
        """`model`: the folder of one that sees. `images`: that of the run's. Raises `ValueError`."""
        self._expander, self._folder = Expander(model, images), ImageFolder(images)
        self._stored: dict[str, StoredImage] = {}
        self.sign = str(tokenizer.convert_ids_to_tokens(self._expander.mark))

    def has(self, name: str) -> bool:
        return self._folder.has(name)

    def expand(self, ids: Sequence[int], names: Sequence[str]) -> list[int]:
        """Raises `TemplateRefusal`."""
        try:
            return self._expander(ids, [self._image(name) for name in names], "the conversation")
        except PromptFileError as error:
            raise TemplateRefusal(str(error)) from None

    def _image(self, name: str) -> StoredImage:
        found = self._stored.get(name)
        if found is None:
            number = self._folder.number_of(name)
            found = self._stored[name] = StoredImage(number, name, *self._folder.open(number).size)
            if len(self._stored) > KEPT:
                self._stored.pop(next(iter(self._stored)), None)
        return found
