"""The images of one row: parts of its messages in OpenAI's form, or a column of them beside `<image>` in its text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from roll.core.configs.sizes import counted
from roll.core.errors import PromptFileError
from roll.prompts.image_reader import ImageReader, StoredImage
from roll.prompts.messages import IMAGE, IMAGE_KINDS

MARK = "<image>"
MOST = 64
"""Images of a row."""
SIZES = "image_sizes"
"""Column of their widths and heights, which rewards may ask for."""
_ALLOWED = 'a list of {"type": "text", "text": ...}, or data_args.images: {} with a model that sees'


class RowImages:
    """Takes the images out of a row's messages, leaves marks there, and reads them in the order of the marks."""

    def __init__(self, content: Mapping[str, Any], reader: ImageReader | None, base: Path | None, where: str) -> None:
        """`reader`: None where rows have no images. `base`: the folder of relative paths."""
        self._reader, self._base, self._where = reader, base, where
        given = None if reader is None else content.get(reader.args.column)
        self._listed: list[object] = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
        self._inline: list[object | None] = []
        """The image of each mark; None: the next of the column."""

    def messages(self, listed: Sequence[object], where: str) -> list[object]:
        """The messages with marks in the place of their images."""
        return [self._message(each, f"{where}[{i}]") for i, each in enumerate(listed)]

    def of_prompt(self, prompt: str | None) -> list[dict[str, Any]] | None:
        """The prompt as a user's message; None if it has no mark."""
        if prompt is None or self._reader is None or MARK not in prompt:
            return None
        return [{"role": "user", "content": list(self._texts(prompt))}]

    def stored(self) -> tuple[StoredImage, ...]:
        """Reads them. Raises `PromptFileError`, too where images and marks are not equally many."""
        marks, listed, reader = self._inline.count(None), len(self._listed), self._reader
        if reader is None:
            return ()
        if marks != listed:
            held = f"{counted(listed, 'image')} in {reader.args.column!r}"
            message = f"{self._where}: {held}, and {counted(marks, 'mark')} for them"
            raise PromptFileError(message, f"one {MARK} in the text for each image")
        if len(self._inline) > MOST:
            raise PromptFileError(f"{self._where}: {len(self._inline)} images, more than {MOST}")
        columns = iter(enumerate(self._listed))
        return tuple(self._read(reader, each, columns) for each in self._inline)

    def named(self, stored: Sequence[StoredImage]) -> dict[str, object]:
        """The column with the names of their files in its place, and their sizes."""
        if self._reader is None or not stored:
            return {}
        return {self._reader.args.column: [each.name for each in stored], SIZES: [[each.width, each.height] for each in stored]}

    def _read(self, reader: ImageReader, given: object | None, columns: Iterator[tuple[int, object]]) -> StoredImage:
        if given is not None:
            return reader.read(given, self._base, f"{self._where}: an image of its messages")
        place, value = next(columns)
        return reader.read(value, self._base, f"{self._where}: {reader.args.column}[{place}]")

    def _message(self, given: object, where: str) -> object:
        if not isinstance(given, Mapping):
            return given
        content, before = given.get("content"), len(self._inline)
        if isinstance(content, str) and self._reader is not None and MARK in content and given.get("role") != "assistant":
            content = list(self._texts(content))
        elif isinstance(content, list):
            content = [each for part in content for each in self._part(part, where)]
        if len(self._inline) > before and given.get("role") == "assistant":
            raise PromptFileError(f"{where} is the assistant's, and has an image: models here write text")
        return {**given, "content": content} if content is not given.get("content") else given

    def _part(self, part: object, where: str) -> Iterator[object]:
        if isinstance(part, Mapping) and part.get("type") in IMAGE_KINDS:
            if self._reader is None:
                raise PromptFileError(f"{where}: it has an image, a part of type {part['type']!r}, and none is read", _ALLOWED)
            yield self._marked(next((part[name] for name in ("image_url", "image", "url", "path") if part.get(name)), None))
        elif isinstance(part, Mapping) and part.get("type") == "text" and isinstance(text := part.get("text"), str):
            yield from self._texts(text)
        else:
            yield part

    def _texts(self, text: str) -> Iterator[dict[str, str]]:
        """The text, cut at its marks."""
        pieces = [text] if self._reader is None else text.split(MARK)
        for place, piece in enumerate(pieces):
            if place:
                yield self._marked(None)
            if piece:
                yield {"type": "text", "text": piece}

    def _marked(self, given: object | None) -> dict[str, str]:
        self._inline.append(given)
        return IMAGE
