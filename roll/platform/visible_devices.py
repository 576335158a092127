"""The devices that a child may see, as CUDA_VISIBLE_DEVICES names them."""

from __future__ import annotations

import os
from collections.abc import Sequence

NAME = "CUDA_VISIBLE_DEVICES"


def only(devices: Sequence[int | str]) -> dict[str, str]:
    """Returns the variable for a child that sees these devices alone, by their numbers here or torch's names of them."""
    seen = os.environ.get(NAME)
    names = [name.strip() for name in seen.split(",")] if seen else None
    numbers = [int(str(device).removeprefix("cuda:")) for device in devices]
    return {NAME: ",".join(names[number] if names else str(number) for number in numbers)}
