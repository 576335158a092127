"""Kept sets are carried, cut and joined as if each token had a list of its own."""

from __future__ import annotations

import json

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from roll.core.data.kept_tokens import KeptSets, KeptTokens

VOCABULARY = 9
SETS = st.lists(st.sets(st.integers(0, VOCABULARY - 1)).map(sorted), max_size=8)


def tokens_of(sets: list[list[int]]) -> KeptTokens:
    return KeptTokens.of([np.array(ids, dtype=np.int32) for ids in sets])


def lists_of(sets: KeptSets) -> list[list[int]]:
    return [part.tolist() for part in sets.ids.split(sets.counts.tolist())] if len(sets.counts) else []


@given(SETS, SETS)
def test_a_response_and_what_follows_it_come_back_from_json(first: list[list[int]], second: list[list[int]]) -> None:
    both = tokens_of(first) + KeptTokens.whole(2) + tokens_of(second)
    assert both == tokens_of([*first, [], [], *second]) and len(both) == len(first) + 2 + len(second)
    assert KeptTokens.from_json(json.loads(json.dumps(both.to_json()))) == both


@given(SETS, st.data())
def test_any_tokens_are_taken_with_their_sets(sets: list[list[int]], data: st.DataObject) -> None:
    batch = KeptSets.of([tokens_of(sets), KeptTokens.whole(1)])
    sets = [*sets, []]
    mask = data.draw(st.lists(st.booleans(), min_size=len(sets), max_size=len(sets)))
    assert lists_of(batch[torch.tensor(mask)]) == [ids for ids, chosen in zip(sets, mask, strict=True) if chosen]
    index = data.draw(st.lists(st.integers(0, len(sets) - 1), max_size=8))
    assert lists_of(batch[torch.tensor(index, dtype=torch.int64)]) == [sets[i] for i in index]
    assert lists_of(KeptSets.joined([batch, KeptSets.whole(2), batch])) == [*sets, [], [], *sets]


@given(SETS, st.integers(0, VOCABULARY - 1), st.integers(1, VOCABULARY))
def test_what_a_set_lacks_is_cut_from_a_part_of_the_vocabulary(sets: list[list[int]], start: int, width: int) -> None:
    cut = KeptSets.of([tokens_of(sets)]).cut(start, start + width)
    assert cut.tolist() == [[bool(ids) and token not in ids for token in range(start, start + width)] for ids in sets]
