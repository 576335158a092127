"""A model that sees, and sequences of its token ids with numbers of images in them: each distinct image of a forward is computed
once, forward and backward, and its features are put wherever a sequence shows it.

A sequence shows an image by its number, once for each feature, among other tokens of its view; the k-th place of a number is its
feature k, and behind the last the image begins again. So a part of a sequence knows its features, wherever it is cut.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from roll.core.data.transfer import Move
from roll.prompts.image_folder import ImageFolder
from roll.strategies.vision.families import family_of
from roll.strategies.vision.family import Family, Focus, View

KEPT_BYTES = 256 << 20
"""Size of the pixels that stay in memory between two forwards."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Rows of tokens, with the places of their images."""

    tokens: Tensor
    """[R, W] int64, with the model's own token in the place of each feature."""
    positions: Tensor
    """[axes, R, W] int64; one axis is plain."""
    numbers: Tensor
    """[R, W] int64, the image of each place; 0 elsewhere."""
    features: Tensor
    """[R, W] int64, which of its features each place is."""


@dataclass(frozen=True, slots=True)
class Images:
    """The images of one forward."""

    inputs: dict[str, Tensor]
    """Arguments of the model."""
    places: Tensor
    features: Tensor
    """As `Focus` has them."""

    def each(self, move: Move) -> Images:
        return Images({name: move(value) for name, value in self.inputs.items()}, move(self.places), move(self.features))


def showings(ids: Sequence[int], features: Callable[[int], int]) -> Iterator[tuple[int, list[int]]]:
    """Each time that an image is shown: its number, and the places of its features. `features`: how many an image has."""
    places, begin = [place for place, token in enumerate(ids) if token < 0], 0
    while begin < len(places):
        number = ids[places[begin]]
        end = begin + features(number)
        yield number, places[begin:end]
        begin = end


class Views:
    """The images of a run as a family sees them. Those asked for often are kept."""

    def __init__(self, family: Family, folder: ImageFolder | None) -> None:
        self._family, self._folder = family, folder
        self._kept: OrderedDict[int, View] = OrderedDict()
        self.blank = family.view(family.blank)

    def of(self, number: int) -> View:
        """Raises `LookupError`."""
        if number in self._kept:
            self._kept.move_to_end(number)
        elif self._folder is None:
            raise LookupError(f"image number {number} in a run without images")
        else:
            self._kept[number] = self._family.view(self._folder.open(number))
            while sum(view.nbytes for view in self._kept.values()) > KEPT_BYTES and len(self._kept) > 1:
                self._kept.popitem(last=False)
        return self._kept[number]


class Sight:
    def __init__(self, model: PreTrainedModel, family: Family, folder: ImageFolder | None) -> None:
        self.family = family
        self._model, self._views = model, Views(family, folder)
        self._focus: list[Focus] = []
        family.attach(model, self._focus)

    @classmethod
    def of(cls, model: Any, path: Path, images: str | None) -> Sight | None:
        """Returns None for a model that reads text. `path`: its folder. `images`: the folder of the run's."""
        family = family_of(path)
        return None if family is None else cls(model, family, None if images is None else ImageFolder(Path(images)))

    def shown(self, rows: Tensor, lengths: Sequence[int]) -> Shown:
        """Returns the inputs for rows [R, W] of so many tokens, padded on the right, where positions are 0. On the host."""
        places, features = rows < 0, torch.zeros_like(rows)
        for number in rows[places].unique().tolist():
            here = rows == number
            features[here] = ((here.cumsum(1) - 1) % self._views.of(number).features)[here]
        tokens = rows.masked_fill(places, self.family.mark)
        positions = [self._positions(*each) for each in zip(tokens, rows, lengths, strict=True)]
        padded = [torch.nn.functional.pad(each, (0, rows.shape[1] - each.shape[1])) for each in positions]
        return Shown(tokens, torch.stack(padded, 1), rows * places, features)

    def _positions(self, tokens: Tensor, row: Tensor, length: int) -> Tensor:
        row = row[:length]
        return self.family.positions(self._model, tokens[:length], row < 0, [self._views.of(n) for n in self._in(row)])

    def _in(self, row: Tensor) -> list[int]:
        """The images of a row, one for each time that it is shown."""
        return [number for number, _ in showings(row.tolist(), lambda number: self._views.of(number).features)]

    def images(self, shown: Shown, chosen: Callable[[Tensor], Tensor]) -> Images | None:
        """Returns the images of some places; None if there is no feature among them. `chosen`: picks the places of [R, W]."""
        numbers, features = chosen(shown.numbers), chosen(shown.features)
        places, first = numbers < 0, 0
        distinct = numbers[places].unique().tolist()
        if not distinct:
            return None
        views = [self._views.of(number) for number in distinct]
        for number, view in zip(distinct, views, strict=True):
            features = torch.where(numbers == number, features + first, features)
            first += view.features
        return Images(self.family.joined(views), places, features[places])

    def blank(self, tokens: Tensor) -> Images:
        """An image that none of the tokens [R, W] shows: ranks that divide what sees compute it together, and its gradient is
        0."""
        none = torch.zeros_like(tokens, dtype=torch.bool)
        return Images(self.family.joined([self._views.blank]), none, tokens.new_zeros(0))

    @contextmanager
    def looking(self, images: Images | None) -> Iterator[dict[str, Tensor]]:
        """While the model is called, with these arguments besides."""
        if images is None:
            yield {}
            return
        self._focus.append(Focus(images.places, images.features))
        try:
            yield images.inputs
        finally:
            self._focus.pop()
