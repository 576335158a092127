"""Micro-batches of samples of about one length; samples that begin alike: which share what, and how they are cut into
micro-batches and over ranks."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.core.data.microbatches import Forest, plan_microbatches


def forest_of(rows):
    return Forest.of([np.array(row) for row in rows])


LENGTHS = st.lists(st.integers(1, 500), max_size=60)
# Few different tokens, so that prefixes are common; and ones whose bytes would sort otherwise than they do.
ROWS = st.lists(st.lists(st.sampled_from([1, 2, 300, 70_000]), min_size=1, max_size=8), max_size=20)


def tokens_of_trie(rows):
    """Nodes of the trie of these rows: the fewest tokens that a model can compute for all of them."""
    return len({tuple(row[: i + 1]) for row in rows for i in range(len(row))})


@given(ROWS)
def test_neighbours_share_all_that_can_be_shared(rows):
    forest = forest_of(rows)
    assert sorted(forest.order) == list(range(len(rows)))
    assert sum(forest.lengths) - sum(forest.shared) == tokens_of_trie(rows)
    for place in range(1, len(rows)):
        before, after = rows[forest.order[place - 1]], rows[forest.order[place]]
        assert before[: forest.shared[place]] == after[: forest.shared[place]]


@given(ROWS, st.integers(1, 40))
def test_microbatches_hold_every_sample_once_within_the_budget(rows, budget):
    plan = forest_of(rows).microbatches(budget)
    assert sorted(itertools.chain(*plan)) == list(range(len(rows)))
    for micro in plan:
        assert len(micro) == 1 or tokens_of_trie([rows[i] for i in micro]) <= budget


@given(ROWS, st.integers(1, 6))
def test_no_rank_has_more_than_the_best_cut_gives_it(rows, ranks):
    forest = forest_of(rows)
    split = forest.split(ranks)
    assert len(split) == ranks
    assert sorted(itertools.chain(*split)) == list(range(len(rows)))
    assert all(part == sorted(part) for part in split)
    largest = max(tokens_of_trie([rows[i] for i in part]) for part in split)
    limits = range(largest)
    assert all(len(forest.microbatches(limit)) > ranks or limit < max(forest.lengths) for limit in limits if limit > 0)


def test_by_hand():
    rows = [[5, 6, 7, 8], [1, 2], [5, 6, 7, 9, 9], [1, 2, 3]]
    forest = forest_of(rows)
    assert forest == Forest([1, 3, 0, 2], [2, 3, 4, 5], [0, 2, 0, 3])
    assert forest.microbatches(6) == [[1, 3], [0, 2]]
    assert forest.microbatches(3) == [[1, 3], [0], [2]]
    assert forest.split(2) == [[1, 3], [0, 2]]
    assert forest.split(5) == [[1, 3], [0], [2], [], []]
    assert forest_of([]).split(2) == [[], []]
    with pytest.raises(ValueError, match="budget"):
        forest.microbatches(0)
    with pytest.raises(ValueError, match="rank"):
        forest.split(0)


@given(LENGTHS, st.integers(1, 1000))
def test_plan_holds_every_sample_once_within_the_budget(lengths, budget):
    plan = plan_microbatches(lengths, budget)
    assert sorted(i for micro in plan for i in micro) == list(range(len(lengths)))
    for micro in plan:
        assert micro
        assert len(micro) == 1 or len(micro) * max(lengths[i] for i in micro) <= budget


@given(LENGTHS, st.integers(1, 1000))
def test_plan_keeps_neighbours_in_length_together_and_opens_no_needless_microbatch(lengths, budget):
    plan = plan_microbatches(lengths, budget)
    for longer, shorter in itertools.pairwise(plan):
        assert min(lengths[i] for i in longer) >= max(lengths[i] for i in shorter)
        assert (len(longer) + 1) * lengths[longer[0]] > budget


def test_plan_by_hand():
    assert plan_microbatches([3, 10, 2, 4], 8) == [[1], [3, 0], [2]]
    assert plan_microbatches([], 8) == []
    with pytest.raises(ValueError, match="max_tokens"):
        plan_microbatches([1], 0)
