import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from roll.core.data.sample import Prompt, Sample, Trajectory, VersionSpan
from roll.core.pipeline.prepared import EvaluatedModel
from roll.core.record.estimates import avg
from roll.core.record.validation import SetRollouts, ValidationResult, ValidationSet, summarise
from roll.core.workers.infer_interface import SamplingParams
from roll.topologies.evaluation import check_complete


def sample(reward, version=3, tag="easy", domain="d", uid="validation/0"):
    prompt = Prompt(uid, [1], "", tag, domain, "")
    spans = (
        [VersionSpan(0, 1, version)] if isinstance(version, int) else [VersionSpan(i, i + 1, v) for i, v in enumerate(version)]
    )
    return Sample(prompt, 0, [7] * len(spans), [0.0] * len(spans), spans, "stop", "", reward)


def rolled_out(*samples, name="validation", n=1, failed=0):
    return SetRollouts(ValidationSet(name, (), n, SamplingParams()), list(samples), failed)


def test_accuracy_is_the_share_of_full_rewards_among_the_graded():
    """Partial credit is reward, not accuracy; what could not be graded counts in neither."""
    graded = [sample(1.0), sample(0.5), sample(0.0), sample(1.0, tag="hard")] * 3
    result = summarise(3, [rolled_out(*graded, sample(None, tag="odd"), n=13)], 2.0)
    assert (result.version, result.errors, result.rollouts, result.seconds) == (3, 1, 13, 2.0)
    assert result.accuracy == 0.5
    assert result.reward == 0.625
    assert result.by_tag == {"easy": pytest.approx(1 / 3), "hard": 1.0}


@pytest.mark.parametrize(
    ("reward", "success_at", "succeeds"),
    [
        (0.9, 0.9, True),
        (0.7 + 0.2 + 0.1, 1.0, True),
        (10.0, 10.0, True),
        (0.99, 1.0, False),
        (1.0, 10.0, False),
        (0.0, 0.5, False),
    ],
)
def test_a_success_is_what_its_domain_says_but_for_rounding(reward, success_at, succeeds):
    answer = sample(reward)
    answer.success_at = success_at
    assert summarise(3, [rolled_out(answer)], 1.0).accuracy == float(succeeds)


def test_an_evaluation_is_a_failure_where_nothing_was_judged_and_none_where_nobody_says_what_a_success_is():
    """Blackjack pays 1, 0 or -1, and says no more."""
    models = [EvaluatedModel(3, "pretrain", Path("model"))]
    ended = [Trajectory([], 0, 1, reward, None, "terminated") for reward in (1.0, -0.5)]
    unsaid = [replace(sample(episode.score), trajectory=episode) for episode in ended]
    result = summarise(3, [rolled_out(*unsaid, n=2)], 1.0)
    assert (result.accuracy, result.scores) == (None, {"validation": 0.25})
    check_complete(models, [result])
    failed = summarise(3, [rolled_out(*unsaid, n=2), rolled_out(sample(None), name="other")], 1.0)
    with pytest.raises(RuntimeError, match="pretrain on other: not one rollout could be judged"):
        check_complete(models, [failed])


def test_a_validation_of_which_too_much_is_missing_has_no_accuracy():
    """73 of 128 that nobody judged, and the others right: that is no accuracy of 1. The mean of what was judged still stands."""
    most = [sample(1.0, uid=f"validation/{i}") for i in range(55)] + [sample(None, uid=f"validation/{i}") for i in range(55, 128)]
    result = summarise(3, [rolled_out(*most)], 1.0)
    assert (result.accuracy, result.reward, result.errors, result.rollouts) == (None, 1.0, 73, 128)
    assert result.by_tag == {} and dict(result.estimates()) == {}
    few = [*most[:55], *(sample(0.0, uid=f"validation/{i}") for i in range(60, 66)), *most[55:60]]
    assert summarise(3, [rolled_out(*few)], 1.0).accuracy == pytest.approx(55 / 61)


def test_rollouts_that_came_to_nothing_are_missing_in_their_part_of_the_set():
    asked = tuple(sample(0.0, tag=tag, domain=tag, uid=f"{tag}/{i}").prompt for tag in ("a", "b") for i in range(20))
    done = [
        sample(1.0, tag=prompt.tag, domain=prompt.domain, uid=prompt.uid)
        for prompt in asked
        if prompt.uid not in ("b/0", "b/1", "b/2")
    ]
    result = summarise(3, [SetRollouts(ValidationSet("validation", asked, 1, SamplingParams()), done, failed=3)], 1.0)
    assert result.accuracy == 1.0 and result.by_tag == {"a": 1.0}, "3 of 40 are missing, and 3 of the 20 of b"
    assert list(result.sets["validation"]) == ["all", "domain/a", "domain/b"] and result.sets["validation"]["domain/b"] == {}


@pytest.mark.parametrize("versions", [4, 2, (3, 4)])
def test_a_validation_speaks_of_one_version_only(versions):
    with pytest.raises(RuntimeError, match="validation of version 3 was answered by versions"):
        summarise(3, [rolled_out(sample(1.0)), rolled_out(sample(1.0, versions), name="more")], 1.0)


def test_a_response_without_a_token_is_of_no_version():
    assert summarise(3, [rolled_out(sample(0.0, ()))], 1.0).accuracy == 0


def test_each_set_has_its_figures_by_domain_and_tag():
    def answers(name, tag, domain, *by_prompt):
        found = [
            (sample(float(ok), tag=tag, domain=domain, uid=f"{name}/{tag}/{i}")) for i, oks in enumerate(by_prompt) for ok in oks
        ]
        return found

    main = [*answers("validation", "a", "x", (1, 0), (1, 1)), *answers("validation", "b", "x", (0, 0)),
            *answers("validation", "c", "y", (0, 1))]  # fmt: skip
    single = answers("single", "a", "x", *[(1,), (0,), (0,)] * 10)
    result = summarise(3, [rolled_out(*main, n=2), rolled_out(*single, name="single", failed=2)], 1.0)
    assert result.accuracy == 0.5 and result.errors == 2, "the first set is the run's accuracy; failures of all sets count"
    parts = result.sets["validation"]
    assert list(parts) == ["all", "domain/x", "domain/y", "tag/a", "tag/b", "tag/c"]
    assert {part: (found["avg@2"].value, found["pass@2"].value) for part, found in parts.items()} == {
        "all": (0.5, 0.75), "domain/x": (0.5, pytest.approx(2 / 3)), "domain/y": (0.5, 1.0), "tag/a": (0.75, 1.0),
        "tag/b": (0.0, 0.0), "tag/c": (0.5, 1.0),
    }  # fmt: skip
    assert list(result.sets["single"]) == ["all"]
    assert result.sets["single"]["all"] == {"avg@1": avg([[True], [False], [False]] * 10)}
    metrics = dict(result.estimates())
    assert metrics["eval/validation/tag/a/avg@2"] == 0.75
    assert 0 < metrics["eval/single/all/avg@1/low"] < metrics["eval/single/all/avg@1"] < metrics["eval/single/all/avg@1/high"] < 1


def test_a_set_of_which_nothing_could_be_judged_has_no_figures():
    result = summarise(3, [rolled_out(sample(None), failed=1)], 1.0)
    assert (result.accuracy, result.reward, result.errors, result.sets) == (None, None, 2, {"validation": {"all": {}}})
    assert dict(result.estimates()) == {}


def test_a_result_comes_back_from_the_database_as_it_was():
    result = summarise(3, [rolled_out(sample(1.0), sample(0.0, tag="hard", uid="validation/1"))], 1.0, {"val/env/x": 1.0})
    assert ValidationResult.from_json(json.loads(json.dumps(asdict(result)))) == result
