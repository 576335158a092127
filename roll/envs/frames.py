"""Pictures of gymnasium's environments: frames of rgb_array, and observations that are pictures themselves.

They are written without Pillow, which an environment's own interpreter need not have.
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import Any

import numpy as np
from gymnasium import spaces

from roll.envs.space_text import MOST_NUMBERS


def is_picture(space: Any) -> bool:
    """True if its members are pictures: H x W x 3 or H x W (x 1) of uint8, with more numbers than text shows."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or math.prod(space.shape) <= MOST_NUMBERS:
        return False
    return len(space.shape) == 2 or (len(space.shape) == 3 and space.shape[2] in (1, 3))


def png(frame: Any) -> bytes:
    """The frame as PNG; equal frames are equal bytes. Raises `ValueError`."""
    pixels = np.asarray(frame)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.dtype != np.uint8 or not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)) or not pixels.size:
        raise ValueError(f"a picture is H x W x 3 or H x W of uint8, not {pixels.dtype} of shape {pixels.shape}")
    height, width = pixels.shape[:2]
    rows = np.zeros((height, 1 + pixels[0].size), np.uint8)  # each row begins with its filter: none
    rows[:, 1:] = pixels.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
