"""Images that environments and programs show while a run goes on: parts of messages become marks of stored images."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from roll.core.configs.arguments import ImageArguments
from roll.core.errors import PromptFileError
from roll.prompts.image_folder import ImageFolder
from roll.prompts.image_marks import mark
from roll.prompts.image_reader import ImageReader, short

MEDIA = ("image/png", "image/jpeg", "image/jpg", "image/webp", "image/gif", "image/bmp", "image/tiff")
_MEDIA = re.compile(r"data:([^;,]*)")
KNOWN = 4096
"""Images that are not decoded again when they are shown again, as the frames of a game are."""


class ShownImages:
    def __init__(self, args: ImageArguments, folder: ImageFolder | None) -> None:
        """`folder`: None where images are looked at, and stored nowhere."""
        self._reader = ImageReader(args, folder)
        self._known: dict[bytes, str] = {}

    def __call__(self, part: Mapping[str, Any]) -> str:
        """The mark of the image in a part. Raises `ValueError`; nothing is fetched, and no path is read."""
        url = _data_url(part)
        found = _MEDIA.match(url)
        if found is None:
            raise ValueError(f"an image is a data URL (data:image/png;base64,...), nothing is fetched; not {short(url, 60)}")
        if found[1] not in MEDIA:
            raise ValueError(f"an image of type {short(found[1], 60)} is not read: {', '.join(MEDIA)}")
        digest = hashlib.sha256(url.encode()).digest()
        if digest not in self._known:
            if len(self._known) == KNOWN:
                del self._known[next(iter(self._known))]
            self._known[digest] = self._mark(url)
        return self._known[digest]

    def _mark(self, url: str) -> str:
        try:
            return mark(self._reader.read(url, None, "a part of the message").name)
        except PromptFileError as error:
            raise ValueError(str(error)) from None


def _data_url(part: Mapping[str, Any]) -> str:
    """Raises `ValueError`."""
    source = part.get("source")
    if isinstance(source, Mapping):
        if source.get("type") == "base64" and isinstance(data := source.get("data"), str):
            return f"data:{source.get('media_type')};base64,{data}"
        if isinstance(url := source.get("url"), str):
            return url
        raise ValueError(f"an image's source is {{type: base64, media_type: ..., data: ...}}, not of type {source.get('type')!r}")
    given = part.get("image_url")
    url = given.get("url") if isinstance(given, Mapping) else given
    if not isinstance(url, str):
        raise ValueError(f"a part of type {part.get('type')!r} has no image: a data URL, data:image/png;base64,...")
    return url
