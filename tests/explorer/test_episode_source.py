import json
from collections import Counter
from itertools import islice
from types import SimpleNamespace

import pytest

from roll.core.configs.agentic import PassRateMixtureConfig
from roll.core.explorer.agentic import SEEDS, EpisodeSource


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


UNEVEN = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 7.0, "e": 0.3}


@pytest.mark.parametrize("groups", [*range(1, 60), 300, 1001])
def test_the_order_of_tags_is_the_same_whenever_a_run_is_resumed(groups):
    """The parts are no sums of powers of two, so what is owed is rounded differently on each side."""
    whole = source(weights=UNEVEN)
    take(whole, groups)
    again = source(weights=UNEVEN)
    again.restore(json.loads(json.dumps(whole.cursor())))
    assert take(again, 200) == take(whole, 200)


def test_equal_tags_take_turns():
    tags = [tag for _, tag, _ in take(source(weights=dict.fromkeys("abcdefghij", 0.1)), 1000)]
    assert "".join(tags) == "abcdefghij" * 100


def test_a_checkpoint_from_before_mixtures_were_one_goes_on_as_it_would_have_gone_on():
    """What that version kept after 14 groups, and served next."""
    served = {"a": 1, "b": 1, "c": 1, "d": 10, "e": 1}
    again = source(weights=UNEVEN)
    again.restore({"seed": 1, "environments": dict.fromkeys("abcde", "{}"), "served": served, "returned": []})
    order = "adbddcdddaddbdcddddadbddcdddeddadbddcddddadbdcddddaddbdcdddd"
    assert "".join(tag for _, tag, _ in take(again, 60)) == order


def test_a_checkpoint_of_other_environments_is_refused():
    cursor = source().cursor()
    with pytest.raises(ValueError, match="seed 1, not 2"):
        source(seed=2).restore(cursor)
    with pytest.raises(ValueError, match=r"\['b'\] are not those of the checkpoint"):
        source(configured={"a": "{}", "b": '{"size": 8}'}).restore(cursor)


def measured(tags=("a", "b", "c", "d"), groups=2, **more):
    mixture = PassRateMixtureConfig(least=0.25, groups=groups)
    return EpisodeSource(dict.fromkeys(tags, 1.0), dict.fromkeys(tags, "{}"), 1, by_pass_rate=mixture, **more)


def end(episodes, tag, passed, of, unknown=0):
    """A group of the tag in which so many episodes of so many succeeded."""
    told = [True] * passed + [False] * (of - passed) + [None] * unknown
    samples = [SimpleNamespace(begins_rollout=True, trajectory=SimpleNamespace(success=success)) for success in told]
    episodes.ended(SimpleNamespace(prompt=SimpleNamespace(tag=tag), samples=samples))


def shares(episodes):
    return {tag: episodes.metrics()[f"mixture/{tag}/share"] for tag in "abcd"}


def test_a_tag_that_always_succeeds_or_never_keeps_a_quarter_of_its_part():
    """p (1 - p) is 0, 1/4 and 0 of the first three; the fourth is not measured, and counts whole."""
    episodes = measured()
    for tag, passed in (("a", 0), ("b", 2), ("c", 4)):
        end(episodes, tag, passed, 4)
    end(episodes, "d", 0, 0, unknown=4)
    assert shares(episodes) == dict.fromkeys("abcd", 0.25), "until a step is trained"
    episodes.settle()
    assert shares(episodes) == {"a": 0.1, "b": 0.4, "c": 0.1, "d": 0.4}
    tags = [tag for _, tag, _ in take(episodes, 200)]
    for n in range(1, 201):
        counts = Counter(tags[:n])
        assert all(abs(counts[tag] - n * share) <= 1 for tag, share in (("a", 0.1), ("b", 0.4), ("c", 0.1), ("d", 0.4)))


def test_pass_rates_are_those_of_the_last_groups_and_what_was_served_before_is_not_made_up_for():
    episodes = measured()
    end(episodes, "a", 0, 4)
    episodes.settle()
    take(episodes, 130)
    for passed in (2, 2):
        end(episodes, "a", passed, 4)
    episodes.settle()
    assert shares(episodes) == dict.fromkeys("abcd", 0.25), "the first of three groups counts no more"
    counts = Counter(tag for _, tag, _ in take(episodes, 40))
    assert all(9 <= counts[tag] <= 11 for tag in "abcd")


def test_a_mixture_goes_on_from_its_checkpoint_as_if_nothing_had_happened():
    episodes = measured()
    for passed in (0, 1, 3):
        end(episodes, "b", passed, 4)
        end(episodes, "c", 4, 4)
        episodes.settle()
        take(episodes, 7)
    end(episodes, "d", 4, 4)
    cursor = json.loads(json.dumps(episodes.cursor()))
    again = measured()
    again.restore(cursor)
    for each in (episodes, again):
        each.settle()
    assert again.metrics() == episodes.metrics() and take(again, 60) == take(episodes, 60)


def test_a_checkpoint_with_another_kind_of_mixture_is_refused():
    plain = EpisodeSource(dict.fromkeys("abcd", 1.0), dict.fromkeys("abcd", "{}"), 1)
    with pytest.raises(ValueError, match="made without pass_rate_mixture"):
        measured().restore(plain.cursor())
    with pytest.raises(ValueError, match="made with pass_rate_mixture"):
        plain.restore(measured().cursor())
