"""Lags are those of the tokens' version spans."""

import json

import pytest

from roll.data.sample import Prompt, Sample, SampleGroup, VersionSpan
from roll.record.off_policy import Correcting, Fading, StalenessStats, Unreached


def group(start_version, *samples):
    prompt = Prompt("p", [1], "", "t", "d", "")
    built = []
    for index, spans in enumerate(samples):
        length = max((stop for _, stop, *_ in spans), default=0)
        spans = [VersionSpan(*span) for span in spans]
        built.append(Sample(prompt, index, [0] * length, [0.0] * length, spans, "stop"))
    return SampleGroup(0, start_version, prompt, built)


def test_figures_of_a_step_by_hand():
    # Trained from version 5. Sample lags (first token): 2, 1, 0. Tokens: 3 at lag 2, 1 + 4 at lag 1, 2 at lag 0.
    stats = StalenessStats(bound=2)
    figures = stats.add_step(5, [group(3, [(0, 3, 3), (3, 4, 4)], [(0, 4, 4)]), group(5, [(0, 2, 5)])])
    assert figures["staleness/max"] == 2
    assert figures["staleness/mean"] == pytest.approx(1.0)
    assert figures["staleness/token_mean"] == pytest.approx((3 * 2 + 5 * 1) / 10)
    assert figures["staleness/histogram"] == {"0": 1, "1": 1, "2": 1}


def test_summary_is_over_all_steps_and_survives_a_checkpoint():
    stats = StalenessStats(bound=1)
    stats.add_step(0, [group(0, [(0, 2, 0)], [(0, 2, 0)])])
    saved = json.loads(json.dumps(stats.state()))
    resumed = StalenessStats(bound=1)
    resumed.restore(saved)
    for one in (stats, resumed):
        one.add_step(1, [group(0, [(0, 6, 0)]), group(1, [(0, 2, 1)])])
    expected = {"bound": 1, "max": 1, "mean": 0.25, "token_mean": 0.5, "histogram": {"0": 3, "1": 1}}
    assert stats.summary() == resumed.summary() == expected
    tighter = StalenessStats(bound=0)
    tighter.restore(saved)
    assert (tighter.summary()["bound"], tighter.bound) == (1, 0), "its oldest samples were within the bound of their time"


def test_a_sample_without_tokens_is_as_old_as_its_group():
    assert StalenessStats(3).add_step(4, [group(2, [])]) == {
        "staleness/max": 2,
        "staleness/mean": 2.0,
        "staleness/token_mean": 0.0,
        "staleness/histogram": {"2": 1},
    }


def test_tokens_of_a_version_that_does_not_exist_yet_are_an_error():
    stats = StalenessStats(1)
    with pytest.raises(ValueError, match="version 4 got tokens of version 6"):
        stats.add_step(4, [group(4, [(0, 1, 4), (1, 2, 6)])])
    assert stats.summary()["histogram"] == {}


def test_a_run_without_steps_has_a_summary():
    assert StalenessStats(2).summary() == {"bound": 2, "max": 0, "mean": 0.0, "token_mean": 0.0, "histogram": {}}


def test_long_responses_that_fade_are_told_once_with_the_fix():
    fading = Fading("topr", "actor_train.topr_ratio_level: token")
    faded = {"actor/gradient_left/bad_1k": 0.8, "actor/gradient_left/bad_8k": 0.3, "actor/gradient_left/good_8k": 1.0}
    (said,) = fading.sentences(faded)
    assert said == (
        "pg_variant topr leaves responses with A < 0 of more than 1,024 tokens 30% of their gradient "
        "(actor/gradient_left/bad_8k), so they are hardly learned from; fix: actor_train.topr_ratio_level: token"
    )
    assert list(fading.sentences(faded)) == []
    (said,) = fading.sentences(faded | {"actor/gradient_left/good_32k": 0.01})
    assert "with A > 0 of more than 8,192 tokens 1%" in said


def test_what_short_responses_lose_too_is_not_a_matter_of_length():
    """A clip that leaves out much of stale samples does so at every length."""
    left = {"actor/gradient_left/bad_1k": 0.5, "actor/gradient_left/bad_8k": 0.4}
    assert list(Fading("ppo", "").sentences(left)) == list(Fading("ppo", "").sentences({})) == []
    assert list(Fading("ppo", "").sentences({"actor/gradient_left/bad_1k": 0.1})) == []
    assert len(list(Fading("vespo", "").sentences({"actor/gradient_left/bad_32k": 0.4}))) == 1


FAR = {"actor/train_infer_ess_token": 0.5, "actor/train_infer_k3": 0.1}


def test_a_target_that_no_pipeline_is_shallow_enough_for_is_told_once():
    def said(target, *steps):
        unreached = Unreached(target)
        metrics = ({"actor/train_infer_ess_sequence": ess} for ess, _ in steps)
        sentences = (unreached.sentence(row, fresh) for row, (_, fresh) in zip(metrics, steps, strict=True))
        return [sentence for sentence in sentences if sentence is not None]

    numerics = (0.6, True)
    assert said(0.5, *[numerics] * 9) == said(None, *[numerics] * 9) == []
    (sentence,) = said(0.9, *[numerics] * 9)
    assert "0.60" in sentence and "target_ess 0.9" in sentence
    stale, reached = (0.6, False), (0.95, True)
    assert said(0.9, *[stale] * 9) == [], "a shallower pipeline may help"
    for between in (stale, reached):
        assert said(0.9, numerics, numerics, between, numerics, numerics) == []


def proposals(ratio, weighted, *rows, bounded=False):
    correcting = Correcting(ratio, weighted, bounded)
    return [said for row in rows if (said := correcting.proposal(row)) is not None]


def test_a_distance_that_lasts_is_told_once_with_what_follows_from_where_it_comes():
    numerics, older = FAR | {"actor/engine_mismatch_k3": 0.09}, FAR | {"actor/engine_mismatch_k3": 0.01}
    near = {"actor/train_infer_ess_token": 0.99}
    assert proposals(2, False, FAR, FAR, near, FAR, FAR) == []
    (said,) = proposals(2, False, *[numerics] * 9)
    assert "50% of the tokens" in said and "90%" in said and "is_weight: {enabled: true" in said and "dtype" in said
    assert "is_weight" not in proposals(2, True, *[numerics] * 3)[0], "it is on already"
    (said,) = proposals(2, False, *[older] * 3)
    assert "10% of it is numerics" in said and said.endswith("staleness_tuning.depth: true, or an async_generation_ratio below 2")
    assert "a larger staleness_tuning.target_ess" in proposals(2, False, *[older] * 3, bounded=True)[0]
    assert len(proposals(2, False, *[older] * 3, near, *[older] * 3)) == 1
    assert "no token was fresh" in proposals(2, False, *[FAR] * 3)[0]
    assert "dtype" in proposals(0, False, *[FAR] * 3)[0], "nothing is older"
