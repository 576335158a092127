"""Small pictures of the images that a run's texts name, as data URLs, each drawn anew: no byte of a file gets into the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from roll.core.data.untrusted import open_inside
from roll.core.errors import PromptFileError, boundary
from roll.prompts.image_marks import names_in
from roll.prompts.image_reader import MOST_BYTES, decoded

SIDE = 160
"""Pixels of the longer side, at most."""
MOST = 32
"""Thumbnails of one group."""
SMALL = 8 << 10
"""Bytes of a PNG; larger ones become a JPEG."""


def thumbnails(folder: Path, texts: Iterable[str]) -> dict[str, str]:
    """Draws the first `MOST` images in these texts, by the names of their files. Images that cannot be shown are left out.
    `folder`: the run's."""
    found = dict[str, str]()
    for name in islice(dict.fromkeys(name for text in texts for name in names_in(text)), MOST):
        try:
            with boundary(PromptFileError):
                found[name] = _drawn(folder, name)
        except PromptFileError:
            continue
    return found


def _drawn(folder: Path, name: str) -> str:
    with open_inside(folder, f"images/{name}") as file:
        image, _ = decoded(file.read(MOST_BYTES + 1), name)
    image.thumbnail((SIDE, SIDE))
    for kind in ("PNG", "JPEG"):
        out = io.BytesIO()
        image.save(out, kind)
        if out.tell() <= SMALL:
            break
    return f"data:image/{kind.lower()};base64,{base64.b64encode(out.getvalue()).decode()}"
