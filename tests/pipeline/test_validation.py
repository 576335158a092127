import pytest

from roll.data.sample import Prompt, Sample, VersionSpan
from roll.pipeline.validation import summarise


def sample(reward, version=3, tag="easy"):
    prompt = Prompt("validation/0", [1], "", tag, "d", "")
    spans = (
        [VersionSpan(0, 1, version)] if isinstance(version, int) else [VersionSpan(i, i + 1, v) for i, v in enumerate(version)]
    )
    return Sample(prompt, 0, [7] * len(spans), [0.0] * len(spans), spans, "stop", "", reward)


def test_accuracy_is_the_share_of_full_rewards_among_the_graded():
    """Partial credit is reward, not accuracy; what could not be graded counts in neither."""
    result = summarise(3, [sample(1.0), sample(0.5), sample(0.0), sample(1.0, tag="hard"), sample(None)], 2.0)
    assert (result.version, result.errors, result.seconds) == (3, 1, 2.0)
    assert result.accuracy == 0.5
    assert result.reward == 0.625
    assert result.by_tag == {"easy": pytest.approx(1 / 3), "hard": 1.0}


@pytest.mark.parametrize("versions", [4, 2, (3, 4)])
def test_a_validation_speaks_of_one_version_only(versions):
    with pytest.raises(RuntimeError, match="validation of version 3 was answered by versions"):
        summarise(3, [sample(1.0), sample(1.0, versions)], 1.0)


def test_a_response_without_a_token_is_of_no_version():
    assert summarise(3, [sample(0.0, ())], 1.0).accuracy == 0
