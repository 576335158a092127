"""Random numbers as a pure function of a seed and a position, for many pairs at once: Philox2x32-10 (Salmon, Moraes, Dror, Shaw,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011).

No state: who resumes a request elsewhere needs its seed and how many tokens it has. They are drawn on the host, in integers, so
the numbers of a seed are the same for every device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
"""Numbers of 32 bits each, so that a product fits."""

_MULTIPLIER, _LOW, _HALF = np.uint64(0xD256D193), np.uint64(0xFFFFFFFF), np.uint64(32)
_WEYL = (np.arange(10, dtype=np.uint64) * np.uint64(0x9E3779B9))[:, None]
"""Each round's addition to the key."""


def philox2x32(first: Words, second: Words, key: Words) -> tuple[Words, Words]:
    """Two random words for each counter (`first`, `second`) under its key."""
    for of_round in (key + _WEYL) & _LOW:
        product = first * _MULTIPLIER
        first, second = (product >> _HALF) ^ (of_round ^ second), product & _LOW
    return first, second


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.float64]:
    """A number of [0, 1) with 53 random bits for each seed (of 64 bits) and position (below 2**32)."""
    of_seeds = np.array(seeds, dtype=np.uint64)
    high, low = philox2x32(np.array(positions, dtype=np.uint64), of_seeds & _LOW, of_seeds >> _HALF)
    found: npt.NDArray[np.float64] = ((high << np.uint64(21)) | (low >> np.uint64(11))) * 2.0**-53
    return found
