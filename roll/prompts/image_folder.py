"""A run's images: a folder of files that are named by their content, each image once.

In a sequence of token ids each place of an image holds its *number*, which is negative, so that it is no token: sequences with
different images differ, whoever compares them (prefixes, caches, queues), and nothing but numbers travels with a sample. Numbers
follow from the content; of two images with one number the second gets the next that is free. `numbers/` says whose each is.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable
from pathlib import Path
from tempfile import NamedTemporaryFile

from PIL import Image

NUMBERS = 1 << 31
"""Images that a folder can number: token ids are stored in 32 bits."""
_SUFFIX = {"PNG": ".png", "JPEG": ".jpg", "WEBP": ".webp"}
FORMATS = tuple(_SUFFIX)
"""Kinds of the files."""


def is_image(token: int) -> bool:
    return token < 0


def images_in(tokens: Iterable[int]) -> list[int]:
    """The numbers in a sequence, each once, in their order."""
    return list(dict.fromkeys(token for token in tokens if token < 0))


def file_name(content: bytes, kind: str) -> str:
    """`kind`: see `FORMATS`."""
    return hashlib.sha256(content).hexdigest() + _SUFFIX[kind]


class ImageFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def put(self, content: bytes, kind: str) -> tuple[int, str]:
        """Stores a checked image; several processes may. Returns its number and the name of its file. `kind`: see `FORMATS`."""
        name = file_name(content, kind)
        if not self.has(name):
            self._write(self.path / name, content)
        return self.number_of(name), name

    def take_in(self, other: Path) -> None:
        """Has the images of another folder, too, as links. Raises `ValueError` where a number is another image's there."""
        for path in sorted(each for pattern in ("[!.]*.*", "numbers/[!.]*") for each in other.glob(pattern)):
            target = self.path / path.relative_to(other)
            if target.exists():
                if path.parent != other and target.read_text() != path.read_text():
                    raise ValueError(f"{path} and {target} give one number to two images")
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, target)
            except OSError:  # they lie on two file systems
                self._write(target, path.read_bytes())

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def number_of(self, name: str) -> int:
        """Returns the number of a stored image."""
        digest = name.partition(".")[0]
        place = int(digest[:8], 16) % NUMBERS
        while (owner := self._claim(place, name)) != name:
            if owner.partition(".")[0] == digest:
                break
            place = (place + 1) % NUMBERS
        return -1 - place

    def name_of(self, number: int) -> str:
        """The file of an image. Raises `LookupError`."""
        try:
            return self._claimed(-1 - number).read_text()
        except FileNotFoundError:
            raise LookupError(f"{self.path} has no image number {number}: it is not this run's folder, or was emptied") from None

    def open(self, number: int) -> Image.Image:
        """The image, decoded. Raises `LookupError` if it is not there, or is not what was stored."""
        path = self.path / self.name_of(number)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise LookupError(f"{path} is gone: the run's prompts show it") from None
        if hashlib.sha256(content).hexdigest() != path.stem:
            raise LookupError(f"{path} is damaged: its content is not what its name says")
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        image.load()
        return image

    def _claimed(self, place: int) -> Path:
        return self.path / "numbers" / f"{place:08x}"

    def _claim(self, place: int, name: str) -> str:
        """The file that has this place; this one, if none had it."""
        path = self._claimed(place)
        if not path.exists():
            self._write(path, name.encode())
        return path.read_text()

    def _write(self, path: Path, content: bytes) -> None:
        """Whole or not at all; of several writers the first wins."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
            file.write(content)
        try:
            os.link(file.name, path)
        except FileExistsError:
            pass
        finally:
            os.unlink(file.name)
