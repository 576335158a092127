"""Lags are those of the tokens' version spans."""

import json

import pytest

from roll.core.data.sample import Prompt, Sample, SampleGroup, VersionSpan
from roll.core.record.off_policy import StalenessStats


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
