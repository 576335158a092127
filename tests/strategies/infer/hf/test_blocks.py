"""The bookkeeping of blocks: none is lost, none is given twice, what is shared is counted once."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from roll.strategies.infer.hf.blocks import Blocks

SLOTS, SIZE, MOST = 6, 4, 23


def consistent(blocks: Blocks, held: list[list[int]]) -> None:
    """Each block that was ever in use is free, or as often referred to as tables and holders have it."""
    referred = Counter(block for table in (*blocks.tables, *held) for block in table)
    assert 0 not in referred and max(referred, default=0) < blocks.made <= MOST + 1
    assert all(blocks._references[block] == referred[block] for block in range(1, blocks.made))
    free = blocks._free
    assert len(set(free)) == len(free) and set(free) == set(range(1, blocks.made)) - set(referred)
    assert blocks.used == len(referred)
    assert blocks.used_by(range(SLOTS)) == len({block for table in blocks.tables for block in table})


@pytest.mark.parametrize("seed", range(5))
def test_ten_thousand_operations_lose_and_double_nothing(seed: int) -> None:
    """Beside it what each slot's tokens are: of a block that a slot writes into nobody else reads."""
    draw = random.Random(seed)
    blocks = Blocks(SLOTS, SIZE, MOST)
    tokens: list[list[int]] = [[] for _ in range(SLOTS)]
    memory = [[-1] * SIZE for _ in range(MOST + 1)]
    written, refused = 0, 0
    for _ in range(10_000):
        first, second = draw.sample(range(SLOTS), 2)
        length = len(tokens[first]) if draw.random() < 0.8 else draw.randint(0, len(tokens[first]))
        match draw.choice(("write", "write", "write", "share", "swap", "end")):
            case "write":
                more = draw.randint(1, 9)
                enough, copies = blocks.own(first, length, length + more)
                for source, target in copies:
                    memory[target] = [*memory[source]]
                refused += not enough
                if enough:
                    tokens[first][length:] = range(written, written + more)
                    written += more
                    for at in range(length, length + more):
                        memory[blocks.tables[first][at // SIZE]][at % SIZE] = tokens[first][at]
            case "share":
                blocks.put(second, blocks.hold(first, length))
                tokens[second] = tokens[first][:length]
            case "swap":
                blocks.swap(first, second)
                tokens[first], tokens[second] = tokens[second], tokens[first]
            case "end":
                blocks.put(first, ())
                tokens[first] = []
        consistent(blocks, [])
        for table, expected in zip(blocks.tables, tokens, strict=True):
            read = [memory[table[at // SIZE]][at % SIZE] for at in range(len(expected))]
            assert read == expected
    assert written > 5_000 and refused > 100
    for slot in range(SLOTS):
        blocks.put(slot, ())
    assert blocks.used == 0


def test_the_prompt_of_a_group_is_there_once_until_its_last_block_is_written() -> None:
    blocks = Blocks(SLOTS, SIZE, MOST)
    assert blocks.own(0, 0, 10) == (True, [])
    for slot in range(1, SLOTS):
        blocks.put(slot, blocks.hold(0, 10))
    assert blocks.used == 3
    copies = [copy for slot in range(SLOTS) for copy in blocks.own(slot, 10, 11)[1]]
    assert len(copies) == SLOTS - 1, "the last one that writes has it alone by then"
    assert blocks.used == 2 + SLOTS
    held = blocks.hold(0, 8)
    for slot in range(SLOTS):
        blocks.put(slot, ())
    consistent(blocks, [held])
    assert blocks.used == 2


def test_who_finds_too_few_keeps_what_it_got() -> None:
    blocks = Blocks(2, SIZE, 3)
    assert blocks.own(0, 0, 8)[0] and not blocks.own(1, 0, 8)[0]
    assert blocks.used == 3
    blocks.put(0, ())
    assert blocks.own(1, 0, 8) == (True, []) and blocks.used == 2
