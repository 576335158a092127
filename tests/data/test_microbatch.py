import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.data.microbatch import plan_microbatches

LENGTHS = st.lists(st.integers(1, 500), max_size=60)


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
