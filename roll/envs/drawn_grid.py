"""Draws a grid of symbols as a picture: a tile of one colour for each square, and a smaller figure on it for who stands there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from roll.core.configs.problems import ConfigError, Problem

TILE = 16
"""Pixels of a square's side."""
Colour = tuple[int, int, int]
Tile = tuple[Colour, Colour | None]
"""The ground, and the figure on it."""


def drawn(rows: Sequence[str], tiles: Mapping[str, Tile]) -> NDArray[np.uint8]:
    """[H, W, 3]."""
    picture = np.zeros((len(rows) * TILE, len(rows[0]) * TILE, 3), np.uint8)
    for r, row in enumerate(rows):
        for c, symbol in enumerate(row):
            ground, figure = tiles[symbol]
            square = picture[r * TILE : (r + 1) * TILE, c * TILE : (c + 1) * TILE]
            square[:] = ground
            square[0], square[:, 0] = (90, 90, 90), (90, 90, 90)
            if figure is not None:
                square[4:-3, 4:-3] = figure
    return picture


def check_render_mode(render_mode: str | None) -> None:
    """Raises `ConfigError`."""
    if render_mode not in (None, "rgb_array"):
        raise ConfigError(
            [Problem("render_mode", render_mode, "must be rgb_array or null", "rgb_array, to be seen as a picture")]
        )
