"""Numbers by seed and position: the published vectors, and their distribution along both."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from roll.core.data.seeding import derive_seed
from roll.strategies.infer.hf.philox import philox2x32, uniforms

LEAST_P = 1e-3
"""Of every goodness of fit below; the numbers are fixed, so none fails by chance."""


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0), 0, (0xFF1DAE59, 0x6CD10DF2)),
        ((0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFF, (0x2C3F628B, 0xAB4FD7AD)),
        ((0x243F6A88, 0x85A308D3), 0x13198A2E, (0xDD7CE038, 0xF62A4C12)),
    ],
)
def test_words_are_those_of_random123(counter: tuple[int, int], key: int, expected: tuple[int, int]) -> None:
    """The vectors of `philox2x32 10` in its tests/kat_vectors."""
    first, second, under = (np.array([word], dtype=np.uint64) for word in (*counter, key))
    assert tuple(int(word[0]) for word in philox2x32(first, second, under)) == expected


def p_value(counts: torch.Tensor) -> float:
    """Of Pearson's chi-square against equal shares."""
    expected = counts.sum() / counts.numel()
    statistic = ((counts - expected) ** 2 / expected).sum().double()
    return float(torch.special.gammaincc(torch.tensor((counts.numel() - 1) / 2, dtype=torch.float64), statistic / 2))


@pytest.mark.parametrize(
    ("seeds", "positions"),
    [
        pytest.param([3] * 65_536, range(65_536), id="positions of a seed"),
        pytest.param(range(65_536), [5] * 65_536, id="a position of neighbouring seeds"),
        pytest.param([i << 32 for i in range(65_536)], [5] * 65_536, id="a position of seeds that differ above"),
        pytest.param(
            [derive_seed(0, i // 64) for i in range(65_536)], [i % 64 for i in range(65_536)], id="64 tokens of requests"
        ),
    ],
)
def test_numbers_and_pairs_of_neighbours_are_uniform(seeds: list[int], positions: list[int]) -> None:
    drawn = torch.from_numpy(uniforms(seeds, positions))
    assert float(drawn.min()) >= 0 and float(drawn.max()) < 1
    assert p_value(torch.bincount((drawn * 1024).long(), minlength=1024).double()) > LEAST_P
    low_bits = (drawn * 2.0**53).long() % 1024
    assert p_value(torch.bincount(low_bits, minlength=1024).double()) > LEAST_P
    coarse = (drawn * 32).long()
    assert p_value(torch.bincount(coarse[:-1:2] * 32 + coarse[1::2], minlength=1024).double()) > LEAST_P


def test_a_number_does_not_depend_on_what_is_drawn_beside_it() -> None:
    seeds, positions = [7, 2**64 - 1, 7, 0], [0, 9, 2**32 - 1, 1]
    together = uniforms(seeds, positions).tolist()
    assert together == [float(uniforms([s], [p])[0]) for s, p in zip(seeds, positions, strict=True)]
    assert len(set(together)) == 4
