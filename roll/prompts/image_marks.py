"""An image in the text of a conversation: a mark with the name of its file in the run's folder of images.

So turns, records and the page hold a few words where the agent sees an image. Whoever writes such a mark himself shows an image
that the run has already, by what its content is; a mark of no image is text.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from roll.prompts.messages import IMAGE

_MARK = re.compile("(\u27e6image [0-9a-f]{64}\\.(?:png|jpg|webp)\u27e7)")


def mark(name: str) -> str:
    """`name`: of a file in the folder of images."""
    return f"\u27e6image {name}\u27e7"


def pieces(text: str, known: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """The text in its order, as (text, name of the image behind it); the last has no image. `known`: whether an image of this
    name is there."""
    before = ""
    for place, piece in enumerate(_MARK.split(text)):
        name = piece[len("\u27e6image ") : -1] if place % 2 else ""
        if name and known(name):
            yield before, name
            before = ""
        else:
            before += piece
    yield before, ""


def names_in(text: str) -> list[str]:
    """Returns the names of the images that it marks, whether they are there or not."""
    return [piece[len("\u27e6image ") : -1] for piece in _MARK.findall(text)]


def marked(text: str, sign: str, names: Sequence[str]) -> str:
    """The text with the mark of an image in the place of each `sign`, as many as there are names."""
    first, *more = text.split(sign, len(names))
    return first + "".join(mark(name) + piece for name, piece in zip(names, more, strict=False))


def image_part(content: bytes, kind: str = "png") -> dict[str, Any]:
    """A part of a message in OpenAI's form."""
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{base64.b64encode(content).decode()}"}}


def content(text: str, known: Callable[[str], bool]) -> tuple[str | list[dict[str, Any]], list[str]]:
    """The content as chat templates of models that see take it, and the names of its images."""
    parts, names = list[dict[str, Any]](), list[str]()
    for before, name in pieces(text, known):
        parts += [{"type": "text", "text": before}] if before else []
        parts += [IMAGE] if name else []
        names += [name] if name else []
    return (parts, names) if names else (text, names)
