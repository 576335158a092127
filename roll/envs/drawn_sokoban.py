"""Sokoban that is seen: the room from above, as a picture."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from roll.envs.drawn_grid import Tile, drawn
from roll.envs.sokoban import VOCABULARIES, Sokoban, draw

_FLOOR, _TARGET, _BOX, _DONE, _PLAYER = (235, 230, 215), (240, 200, 60), (150, 90, 40), (40, 140, 60), (210, 40, 40)
TILES: dict[str, Tile] = {
    "#": ((70, 70, 80), None),
    "_": (_FLOOR, None),
    "O": (_TARGET, None),
    "X": (_FLOOR, _BOX),
    "\u221a": (_TARGET, _DONE),
    "P": (_FLOOR, _PLAYER),
    "S": (_TARGET, _PLAYER),
}
"""Pictures of the default vocabulary's symbols."""


class DrawnSokoban(Sokoban):
    """Takes the keys of `sokoban`."""

    render_mode = "rgb_array"

    def _rules(self) -> str:
        *rules, _ = super()._rules().splitlines()
        seen = "You see the room from above: you are red, boxes are brown and on a target green, targets yellow, walls dark."
        return "\n".join([*rules, seen])

    def render(self) -> NDArray[np.uint8]:
        return drawn(draw(self.room, VOCABULARIES["default"]).splitlines(), TILES)
