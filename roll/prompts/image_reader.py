"""Images that somebody else's rows name, decoded once and checked: what leaves here is an upright RGB image of 8 bits.

Files are read from the folder of the rows, or by an absolute path if they are the user's own; nothing is fetched. What an image
would take in memory is known from its first bytes, and refused before it is decoded.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from roll.core.configs.arguments import ImageArguments
from roll.core.data.untrusted import open_inside, open_regular
from roll.core.errors import PromptFileError, boundary
from roll.prompts.image_folder import FORMATS, ImageFolder, file_name

MOST_BYTES = 20 << 20
MOST_PIXELS = 50_000_000
"""Pixels of an image as it comes."""
READ = (*FORMATS, "GIF", "BMP", "TIFF")
"""Formats that are read."""
_BASE64 = re.compile(r"(iVBORw0KGgo|/9j/|R0lGOD|UklGR|Qk[0-9A-Za-z]|SUkq|TU0A)[A-Za-z0-9+/\s]{40,}={0,2}\s*")
"""A text that is an image: it begins as one of a format does."""
_DATA_URL = re.compile(r"data:(?P<kind>[\w/+.-]*)(;[\w=-]+)*?(?P<encoded>;base64)?,(?P<content>.*)", re.DOTALL)
_EVERY_BIT = {"I;16": 256, "I;16L": 256, "I;16B": 256, "I;16N": 256, "I": 256}
"""Modes of gray images with 16 bits, and the divisor of their values."""


class StoredImage(NamedTuple):
    number: int
    name: str
    """Name of its file in the run's folder of images."""
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class ImageReader:
    args: ImageArguments
    folder: ImageFolder | None
    """None: images are checked, and stored nowhere."""

    def read(self, value: object, base: Path | None, where: str) -> StoredImage:
        """`base`: the folder of the rows; None: they have none. `where`: file, row and place, for errors. Raises
        `PromptFileError`."""
        with boundary(lambda text: PromptFileError(f"{where}: the image cannot be read: {text}"), ours=(PromptFileError,)):
            content = _content(value, base, where)
            image, kind = decoded(content, where)
            image, changed = self._within(image)
            if kind is None or changed:
                content, kind = _as_png(image), "PNG"
            number, name = (0, file_name(content, kind)) if self.folder is None else self.folder.put(content, kind)
            return StoredImage(number, name, *image.size)

    def _within(self, image: Image.Image) -> tuple[Image.Image, bool]:
        """Returns it with at most `max_pixels`, in the same shape; True if it was made smaller."""
        most, (width, height) = self.args.max_pixels, image.size
        if most is None or width * height <= most:
            return image, False
        scale = (most / (width * height)) ** 0.5
        return image.resize((max(1, int(width * scale)), max(1, int(height * scale))), Image.Resampling.BICUBIC), True


def decoded(content: bytes, where: str) -> tuple[Image.Image, str | None]:
    """An upright RGB image, and the format of its bytes if these decode to just that. Raises `PromptFileError`."""
    if len(content) > MOST_BYTES:
        raise PromptFileError(f"{where}: the image has {len(content):,} bytes, more than {MOST_BYTES:,}", "a smaller file")
    if not content:
        raise PromptFileError(f"{where}: the image has no bytes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image: Any = Image.open(io.BytesIO(content), formats=READ)
    except UnidentifiedImageError:
        raise PromptFileError(f"{where}: these bytes are no image of {', '.join(READ)}", "save it as PNG or JPEG") from None
    except Image.DecompressionBombError:
        raise PromptFileError(f"{where}: the image has more than {MOST_PIXELS:,} pixels", "a smaller image") from None
    kind, (width, height) = str(image.format), image.size
    if width * height > MOST_PIXELS:
        raise PromptFileError(f"{where}: the image is {width:,} x {height:,}, more than {MOST_PIXELS:,} pixels", "a smaller one")
    if not width or not height:
        raise PromptFileError(f"{where}: the image is {width} x {height}: it shows nothing")
    if (frames := getattr(image, "n_frames", 1)) > 1:
        raise PromptFileError(f"{where}: the image is {frames} images, one after the other", "save the one that is meant")
    image.load()
    upright = image.getexif().get(ExifTags.Base.Orientation, 1) == 1
    plain = image.mode == "RGB" and kind in FORMATS and upright and not image.has_transparency_data
    return (image, kind) if plain else (_rgb(ImageOps.exif_transpose(image)), None)


def _rgb(image: Any) -> Image.Image:
    """Converts it to RGB; transparent parts show white."""
    if (divisor := _EVERY_BIT.get(image.mode)) is not None:
        image = image.convert("I").point(lambda value: value / divisor).convert("L")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    converted: Image.Image = image.convert("RGB")
    return converted


def _as_png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    clean = Image.frombytes("RGB", image.size, image.tobytes())  # without what else the file said
    clean.save(out, "PNG")
    return out.getvalue()


def _content(value: object, base: Path | None, where: str) -> bytes:
    """The bytes of an image that is given as such, as text, by path or URL, or as `datasets` gives it."""
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, Mapping):
        given = next((value[name] for name in ("bytes", "url", "path", "image") if value.get(name) is not None), None)
        if isinstance(given, Mapping) or given is None:
            raise PromptFileError(f"{where}: has none of bytes, url and path", 'e.g. {"path": "images/1.png"}')
        return _content(given, base, where)
    if not isinstance(value, str) or not value.strip():
        raise PromptFileError(f"{where}: names no image", "a path, a data URL, base64, or bytes")
    if value.startswith("data:"):
        return _of_data_url(value, where)
    if _BASE64.fullmatch(value):
        return _of_base64(value, where)
    return _of_file(_path(value, where), base, where)


def _of_data_url(url: str, where: str) -> bytes:
    found = _DATA_URL.fullmatch(url)
    if found is None or not found["encoded"] or not found["kind"].startswith("image/"):
        raise PromptFileError(f"{where}: {short(url)} is no data URL of an image", "data:image/png;base64,...")
    return _of_base64(found["content"], where)


def _of_base64(text: str, where: str) -> bytes:
    if len(text) > MOST_BYTES // 3 * 4 + 4:
        raise PromptFileError(
            f"{where}: the image has {len(text):,} characters, more than {MOST_BYTES:,} bytes", "a smaller file"
        )
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error as error:
        raise PromptFileError(f"{where}: {short(text)} is not base64: {error}") from None


def _path(value: str, where: str) -> str:
    parts = urlsplit(value) if "://" in value else None
    if parts is None:
        return value
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        message = f"{where}: {short(value)} lies on a network, and nothing is fetched"
        raise PromptFileError(message, "save it beside the rows, and name its path")
    return unquote(parts.path)


def _of_file(name: str, base: Path | None, where: str) -> bytes:
    shown = short(name)
    if "\0" in name:
        raise PromptFileError(f"{where}: {shown} is no path")
    absolute = PurePosixPath(name).is_absolute()
    if not absolute and base is None:
        raise PromptFileError(f"{where}: {shown} is a path, and the data set has no folder", "bytes in the data set")
    try:
        if absolute:
            with open_regular(Path(name)) as file:
                if os.getuid() not in (0, os.fstat(file.fileno()).st_uid):
                    raise PromptFileError(f"{where}: {shown} is another user's", "copy it into the folder of the rows")
                return file.read(MOST_BYTES + 1)
        assert base is not None
        with open_inside(base, normpath(name)) as file:
            return file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        path = name if absolute else f"{base}/{name}"
        raise PromptFileError(f"{where}: there is no file {short(path, 200)}", "mend the path, or leave the row out") from None
    except OSError as error:
        raise PromptFileError(f"{where}: {shown} cannot be read: {error.strerror}") from None


def short(text: str, most: int = 80) -> str:
    return repr(text if len(text) <= most else f"{text[:most]}...")
