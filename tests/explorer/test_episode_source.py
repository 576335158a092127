from collections import Counter
from itertools import islice

import pytest

from roll.explorer.agentic import SEEDS, EpisodeSource


def source(seed=1, weights=None, purpose="train", configured=None):
    weights = weights or {"a": 3.0, "b": 1.0}
    return EpisodeSource(weights, configured or dict.fromkeys(weights, "{}"), seed, purpose)


def take(episodes, n):
    return [(prompt.uid, prompt.tag, prompt.row["env_seed"]) for prompt in islice(iter(episodes.next, None), n)]


def test_environments_are_a_function_of_seed_and_purpose_alone():
    assert take(source(), 40) == take(source(), 40)
    seeds = {env_seed for _, _, env_seed in take(source(), 40)}
    assert len(seeds) == 40 and all(0 <= seed < SEEDS for seed in seeds)
    assert not seeds & {env_seed for _, _, env_seed in take(source(seed=2), 40)}
    assert not seeds & {env_seed for _, _, env_seed in take(source(purpose="validation"), 40)}, "no map is trained and tested on"


def test_an_environments_seed_does_not_depend_on_other_tags():
    """A tag that is added changes the order, not the environments."""
    alone = take(source(weights={"a": 1.0}), 5)
    assert [entry for entry in take(source(), 12) if entry[1] == "a"][:5] == alone


def test_at_every_moment_each_tag_has_had_its_share():
    tags = [tag for _, tag, _ in take(source(weights={"a": 3.0, "b": 1.0, "c": 4.0}), 80)]
    for n in range(1, 81):
        counts = Counter(tags[:n])
        assert all(abs(counts[tag] - n * share) <= 1 for tag, share in (("a", 3 / 8), ("b", 1 / 8), ("c", 4 / 8)))


def test_a_restored_source_serves_what_was_outstanding_and_goes_on():
    first = source()
    served = [first.next() for _ in range(10)]
    again = source()
    again.restore(first.cursor([served[7], served[9]]))
    assert take(again, 4) == [*((p.uid, p.tag, p.row["env_seed"]) for p in (served[7], served[9])), *take(first, 2)]


def test_a_checkpoint_of_other_environments_is_refused():
    cursor = source().cursor()
    with pytest.raises(ValueError, match="seed 1, not 2"):
        source(seed=2).restore(cursor)
    with pytest.raises(ValueError, match=r"\['b'\] are not those of the checkpoint"):
        source(configured={"a": "{}", "b": '{"size": 8}'}).restore(cursor)
